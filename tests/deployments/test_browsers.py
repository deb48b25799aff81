"""Web pages may call the API from a browser where the configuration names them, and only there."""

from __future__ import annotations

from pathlib import Path

import httpx

from deployments.auth import ApiKeys
from deployments.routes import create_app
from tests.deployments.scripted import ScriptedTokens, saying
from tests.deployments.world import CHAT, make_gateway

PAGE = "https://chat.example"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


def client(folder: Path, **gateway: object) -> httpx.AsyncClient:
    source = ScriptedTokens(saying([65, 1]))
    app = create_app(make_gateway(folder, source, ApiKeys({"key": "tenant"}), gateway=gateway))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shoal")


async def test_a_page_of_a_configured_origin_may_ask_and_read_the_answer(folder: Path) -> None:
    async with client(folder, cors_origins=[PAGE]) as browser:
        preflight = await browser.options("/v1/chat/completions", headers=PREFLIGHT)
        headers = {"origin": PAGE, "authorization": "Bearer key"}
        answer = await browser.post("/v1/chat/completions", json=CHAT, headers=headers)
        refusal = await browser.post("/v1/chat/completions", json=CHAT, headers={"origin": PAGE})
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert "x-stainless-lang" in preflight.headers["access-control-allow-headers"]
    assert (answer.status_code, refusal.status_code) == (200, 401)
    for read in (answer, refusal):
        assert read.headers["access-control-allow-origin"] == PAGE
        assert read.headers["access-control-expose-headers"] == "retry-after"


async def test_a_page_of_another_origin_is_not_let_in(folder: Path) -> None:
    async with client(folder, cors_origins=["https://other.example"]) as browser:
        preflight = await browser.options("/v1/chat/completions", headers=PREFLIGHT)
    assert preflight.status_code == 400
    assert "access-control-allow-origin" not in preflight.headers


async def test_no_page_is_let_in_by_default(folder: Path) -> None:
    async with client(folder) as browser:
        preflight = await browser.options("/v1/chat/completions", headers=PREFLIGHT)
    assert preflight.status_code == 401
    assert "access-control-allow-origin" not in preflight.headers
