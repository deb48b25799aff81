"""The application that is measured: two shards of a tiny model behind two Gateways and HAProxy."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import psutil

from benchmarks import tiny
from cluster.config import GatewayConfig
from tests.actors.living import until
from tests.system.application import MODEL as MODEL
from tests.system.tiny import CONTEXT as CONTEXT

GOOD_KEY, BAD_KEY = "sk-good", "sk-bad"
KEYS = f"good:{GOOD_KEY},bad:{BAD_KEY}"
MAX_BODY = GatewayConfig().max_body_bytes
GATEWAYS = 2
BLOCK = 8
PLACES = 320
ROOMY = {
    "shards": 2,
    "cache": {"block_size": BLOCK, "num_blocks": PLACES * CONTEXT // BLOCK},
    "batching": {"max_num_seqs": PLACES, "max_batch_tokens": 512},
}
"""Places and pages for every stream of a kind: that one waits for them is not what is measured."""

LOOK_S = 5.0
"""One that hangs is not waited for: the next one may be answered."""

_, FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
IDLE = min(10_000, FILES * 7 // 20)
"""Connections: with two for each five files HAProxy has room for these and an eighth more."""


@dataclass(frozen=True)
class Server(tiny.Server):
    """What it holds, and the Gateways that may be killed."""

    async def held(self) -> int:
        """Pages, leases and queued requests that are not free."""
        async with self.http() as http:
            books: dict[str, Any] = (await http.get("/admin/stats", timeout=LOOK_S)).json()
        pages = sum(shard["used_pages"] for shard in books["shards"])
        queued = sum(books["scheduler"]["queued"].values())
        return int(pages + books["scheduler"]["leased"] + queued)

    async def until_free(self, limit_s: float) -> None:
        """Returns once nothing is held; raises TimeoutError after `limit_s`."""
        await until(self._is_free, within_s=limit_s)

    async def _is_free(self) -> bool:
        try:
            return await self.held() == 0
        except (httpx.HTTPError, KeyError):  # a Gateway that has just died was asked
            return False

    def gateways(self) -> list[psutil.Process]:
        return self.processes("Gateway")


@contextmanager
def started() -> Iterator[Server]:
    """What `make serve` starts, answering, and ended at the end."""
    with tiny.started(KEYS, ROOMY, gateway={"replicas": GATEWAYS}) as server:
        yield Server(server.port, server.pid, server.key)
