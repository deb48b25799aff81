"""Secrets of this machine, made once and kept where only their owner can read them."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def ensure_secret(path: Path, prefix: str = "") -> str:
    """The secret kept in `path`, made now if there is none; the file's mode is 0600."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        made = path.with_name(f"{path.name}.{os.getpid()}")
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(prefix + secrets.token_urlsafe(32))
        with contextlib.suppress(FileExistsError):  # somebody else was first
            os.link(made, path)  # whole, or not at all
        made.unlink()
    return path.read_text().strip()
