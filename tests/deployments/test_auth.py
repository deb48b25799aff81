"""Who may enter, and with which key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.datastructures import Headers

from cluster.config import AuthConfig
from cluster.errors import ConfigError
from deployments.auth import ApiKeys, tenant_salt
from deployments.routes import create_app
from tests.deployments.scripted import ScriptedTokens, saying
from tests.deployments.world import CHAT, make_gateway

ENVIRON = {"SHOAL_API_KEYS": "plain-key, acme:their:key,"}


@pytest.fixture
def source() -> ScriptedTokens:
    return ScriptedTokens(saying([65, 1]))


@pytest.fixture
async def client(folder: Path, source: ScriptedTokens) -> AsyncIterator[httpx.AsyncClient]:
    keys = ApiKeys.from_environment(AuthConfig(), ENVIRON)
    transport = httpx.ASGITransport(create_app(make_gateway(folder, source, keys)))
    async with httpx.AsyncClient(transport=transport, base_url="http://shoal") as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(("key", "tenant"), [("plain-key", "default"), ("their:key", "acme")])
async def test_a_known_key_enters_for_its_tenant(
    client: httpx.AsyncClient, source: ScriptedTokens, key: str, tenant: str
) -> None:
    response = await client.post("/v1/chat/completions", json=CHAT, headers=bearer(key))
    assert response.status_code == 200
    assert source.requests[0].tenant == tenant


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Bearer nemo", "Basic OnBsYWluLWtleQ=="]
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/anything"])
async def test_nothing_else_enters(client: httpx.AsyncClient, path: str, header: str) -> None:
    response = await client.post(path, json=CHAT, headers={"authorization": header})
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_probes_need_no_key(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer nemo"}])
async def test_strangers_learn_whether_it_is_ready_and_no_more(
    client: httpx.AsyncClient, source: ScriptedTokens, headers: dict[str, str]
) -> None:
    assert (await client.get("/ready", headers=headers)).json() == {"status": "ready"}
    source.before_hold = 0
    refused = await client.get("/ready", headers=headers)
    assert refused.status_code == 503
    assert "the source holds back" not in refused.text


async def test_who_has_a_key_learns_why_it_is_not_ready(
    client: httpx.AsyncClient, source: ScriptedTokens
) -> None:
    source.before_hold = 0
    refused = await client.get("/ready", headers=bearer("plain-key"))
    assert refused.json()["error"]["message"] == "the source holds back"


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
async def test_a_browser_opens_the_docs_with_the_key_as_password(
    client: httpx.AsyncClient, path: str
) -> None:
    asked = await client.get(path)
    assert asked.status_code == 401
    assert asked.headers["www-authenticate"].startswith("Basic ")
    assert (await client.get(path, auth=("anyone", "plain-key"))).status_code == 200
    assert (await client.get(path, auth=("anyone", "nemo"))).status_code == 401
    assert (await client.get(path, headers={"authorization": "Basic fish"})).status_code == 401
    assert (await client.get(path, headers=bearer("plain-key"))).status_code == 200


@pytest.mark.parametrize("value", ["", " ", ",", "acme:"])
def test_a_locked_door_without_keys_is_a_configuration_error(value: str) -> None:
    with pytest.raises(ConfigError, match="SHOAL_API_KEYS"):
        ApiKeys.from_environment(AuthConfig(), {"SHOAL_API_KEYS": value})


def test_an_open_door_asks_nobody() -> None:
    keys = ApiKeys.from_environment(AuthConfig(mode="none"), ENVIRON)
    assert keys.tenant(Headers()) == "default"


def test_tenants_have_salts_of_their_own() -> None:
    salts = {tenant_salt(tenant) for tenant in ("", "default", "acme")}
    assert {len(salt) for salt in salts} == {16}
    assert len(salts) == 3
