"""The fixtures of the doors' tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from deployments.routes import create_app
from deployments.text import ModelText
from tests.deployments.scripted import ScriptedTokens, saying
from tests.deployments.words import save_words
from tests.deployments.world import World, make_gateway


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_words(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="session")
def text(folder: Path) -> ModelText:
    return ModelText.load(folder)


@pytest.fixture
async def world(folder: Path, text: ModelText) -> AsyncIterator[World]:
    """Says that the capital of France is Paris."""
    paris = await text.encode("The capital of France is Paris.")
    source = ScriptedTokens(saying([*paris, 1]))
    gateway = make_gateway(folder, source)
    transport = httpx.ASGITransport(create_app(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://shoal") as client:
        yield World(gateway, source, client, text)
