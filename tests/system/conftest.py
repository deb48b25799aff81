"""The fixtures of the system tests: a tiny model, and the application on a Ray of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.application import Application, running
from tests.system.tiny import save_tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def application(tiny_folder: Path) -> Iterator[Application]:
    """Two shards of the tiny model, behind Serve's default proxy."""
    with running(tiny_folder, shards=2) as application:
        yield application
