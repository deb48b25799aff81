"""A gateway over a scripted source, and a client that speaks to it in process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx

from cluster.config import ModelConfig, parse_config
from cluster.explanations import Explanation, Forecast
from cluster.messages import Refusal, RefusalKind, Request, ShardRef, Submission
from cluster.stats import ClusterStats, SchedulerStats
from cluster.topology import Node, NumaNode, Topology
from deployments.auth import ApiKeys
from deployments.gateway import Gateway, Outside
from deployments.readiness import Readiness
from deployments.served import ServedModel
from deployments.text import ModelText
from tests.deployments.scripted import Script, ScriptedTokens

MODEL = "shoal/tiny"
NOW = 1_700_000_000
REFUSED = Refusal("chatcmpl-1-0", RefusalKind.QUEUE_FULL, "too many are waiting", 3.0)
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Where?"}]}
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "One fish,"}


def make_gateway(
    folder: Path,
    source: ScriptedTokens,
    keys: ApiKeys | None = None,
    living: int = 0,
    **config: Any,
) -> Gateway:
    """Beside `living` shards; `config` is what would stand under `args` in the file."""

    async def readiness() -> Readiness:
        obstacles = () if source.before_hold is None else ("the source holds back",)
        return Readiness(obstacles, asleep=("shoal/sleeper",), loading=("shoal/waking",))

    async def stats() -> ClusterStats:
        shards = [ShardRef(f"s{number}", MODEL, "", "") for number in range(living)]
        return ClusterStats(SchedulerStats(epoch=7, shards=tuple(shards)), ())

    config.setdefault("models", [{"name": MODEL}])
    model = ServedModel.load(ModelConfig(name=MODEL), folder)

    async def topology() -> Topology:
        return Topology((Node("here", (NumaNode(0, (0, 1), 2**34),)),))

    async def explain(request_id: str) -> Explanation | None:
        return Explanation(REFUSED, ago_s=2.0) if request_id == REFUSED.request_id else None

    async def forecast(submission: Submission) -> Forecast:
        return Forecast(None, 0.0, float(submission.prompt_tokens), ())

    outside = Outside(
        source,
        readiness,
        stats,
        topology,
        explain,
        forecast,
        now=lambda: NOW + 0.5,
        random=Random(7),
    )
    return Gateway(parse_config(config), [model], keys or ApiKeys({}), outside)


@dataclass
class World:
    """All there is in a test."""

    gateway: Gateway
    source: ScriptedTokens
    client: httpx.AsyncClient
    text: ModelText

    def says(self, script: Script) -> None:
        self.source.script = script

    @property
    def asked(self) -> Request:
        return self.source.requests[-1]

    async def chat(self, **fields: Any) -> httpx.Response:
        return await self._post("/v1/chat/completions", {**CHAT, **fields})

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self._post("/v1/completions", {**COMPLETION, **fields})

    async def _post(self, path: str, body: Any) -> httpx.Response:
        """In ASCII, which can spell text that UTF-8 cannot encode."""
        headers = {"content-type": "application/json"}
        return await self.client.post(path, content=json.dumps(body), headers=headers)


def read_events(response: httpx.Response) -> list[Any]:
    """The chunks of a stream that ends as it should."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [event.removeprefix("data: ") for event in response.text.split("\n\n") if event]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def contents(chunks: Sequence[Any], choice: int = 0) -> list[str]:
    """The texts of the chunks of one choice of a chat."""
    return [
        part["delta"].get("content", "")
        for chunk in chunks
        for part in chunk["choices"]
        if part["index"] == choice
    ]
