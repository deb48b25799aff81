"""Probes, models and documentation."""

from __future__ import annotations

from cluster.plain import from_json
from cluster.topology import Topology
from tests.deployments.world import CHAT, MODEL, NOW, World


async def test_health_is_about_being_alive(world: World) -> None:
    world.source.before_hold = 0
    assert (await world.client.get("/health")).status_code == 200


async def test_ready_is_about_answering_now(world: World) -> None:
    answer = await world.client.get("/ready")
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")
    world.source.before_hold = 0
    refused = await world.client.get("/ready")
    assert refused.status_code == 503
    assert refused.json()["error"]["message"] == "the source holds back"


async def test_a_model_that_sleeps_or_loads_is_named_and_keeps_nobody_out(world: World) -> None:
    ready = (await world.client.get("/ready")).json()
    assert (ready["asleep"], ready["loading"]) == (["shoal/sleeper"], ["shoal/waking"])


async def test_the_books_are_open_to_those_with_a_key(world: World) -> None:
    books = (await world.client.get("/admin/stats")).json()
    assert books["scheduler"]["epoch"] == 7
    assert books["shards"] == []


async def test_the_topology_is_told_as_data(world: World) -> None:
    answer = await world.client.get("/admin/topology")
    assert from_json(Topology, answer.text).nodes[0].cpus == (0, 1)


async def test_a_decision_is_explained_by_the_id_of_its_answer(world: World) -> None:
    for request_id in ("chatcmpl-1-0", "chatcmpl-1"):
        answer = await world.client.get(f"/admin/scheduler/explain/{request_id}")
        explanation = answer.json()
        assert explanation["ago_s"] == 2.0
        assert explanation["decision"]["kind"] == "queue_full"


async def test_a_decision_that_nobody_remembers_is_not_found(world: World) -> None:
    answer = await world.client.get("/admin/scheduler/explain/chatcmpl-2")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


async def test_a_dry_run_tells_what_would_become_of_a_chat(world: World) -> None:
    answer = await world.client.post("/admin/scheduler/explain", json=CHAT)
    forecast = answer.json()
    assert forecast["ahead_tokens"] > 0
    assert (forecast["refusal"], forecast["candidates"]) == (None, [])
    assert world.source.requests == []


async def test_a_dry_run_checks_the_body_as_the_real_one(world: World) -> None:
    answer = await world.client.post("/admin/scheduler/explain", json={**CHAT, "model": "nemo"})
    assert answer.status_code == 404


async def test_models_are_listed(world: World) -> None:
    card = {"id": MODEL, "object": "model", "created": NOW, "owned_by": "shoal"}
    assert (await world.client.get("/v1/models")).json() == {"object": "list", "data": [card]}
    assert (await world.client.get(f"/v1/models/{MODEL}")).json() == card
    assert (await world.client.get("/v1/models/nemo")).status_code == 404


async def test_the_api_is_documented(world: World) -> None:
    assert "swagger" in (await world.client.get("/docs")).text
    paths = (await world.client.get("/openapi.json")).json()["paths"]
    assert set(paths) == {
        "/health",
        "/ready",
        "/admin/stats",
        "/admin/topology",
        "/admin/scheduler/explain",
        "/admin/scheduler/explain/{request_id}",
        "/v1/models",
        "/v1/models/{name}",
        "/v1/chat/completions",
        "/v1/completions",
    }
    for path in ("/v1/chat/completions", "/v1/completions"):
        answers = paths[path]["post"]["responses"]
        assert set(answers) == {"200", "4XX", "5XX"}
