"""What shards leave on this machine when they are killed, as all are at the end: their pages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from actors.page_files import sweep
from cluster.config import ModelConfig


def sweep_pages(models: Iterable[ModelConfig]) -> None:
    """Remove the folders of shards that are dead; those of the living stay, whoever started them.

    Where that cannot be done, the next shard there tries again.
    """
    for model in models:
        if model.cache.folder is not None:
            with contextlib.suppress(OSError):
                sweep(Path(model.cache.folder.path).expanduser())
