"""Probes, models and documentation."""

from __future__ import annotations

from cluster.plain import from_json
from cluster.topology import Topology
from tests.deployments.world import MODEL, NOW, World


async def test_health_is_about_being_alive(world: World) -> None:
    world.source.before_hold = 0
    assert (await world.client.get("/health")).status_code == 200


async def test_ready_is_about_answering_now(world: World) -> None:
    assert (await world.client.get("/ready")).status_code == 200
    world.source.before_hold = 0
    refused = await world.client.get("/ready")
    assert refused.status_code == 503
    assert refused.json()["error"]["message"] == "the source holds back"


async def test_the_books_are_open_to_those_with_a_key(world: World) -> None:
    books = (await world.client.get("/admin/stats")).json()
    assert books["scheduler"]["epoch"] == 7
    assert books["shards"] == []


async def test_the_topology_is_told_as_data(world: World) -> None:
    answer = await world.client.get("/admin/topology")
    assert from_json(Topology, answer.text).nodes[0].cpus == (0, 1)


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
        "/v1/models",
        "/v1/models/{name}",
        "/v1/chat/completions",
        "/v1/completions",
    }
    for path in ("/v1/chat/completions", "/v1/completions"):
        answers = paths[path]["post"]["responses"]
        assert set(answers) == {"200", "4XX", "5XX"}
