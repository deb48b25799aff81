"""Secrets of this machine, made once and kept where only their owner can read them."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def ensure_secret(path: Path, prefix: str = "") -> str:
    """The secret kept in `path`, made now if there is none; the file's mode is 0600."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    with os.fdopen(descriptor, "w") as file:
        file.write(prefix + secrets.token_urlsafe(32))
    return path.read_text()
