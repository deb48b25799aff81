"""How many shards serve, looked at once a second; each shard's process is held to its share."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import httpx

from benchmarks.autoscaling.findings import Sample
from benchmarks.tiny import Server
from tests.system.application import MODEL

LOOK_S = 1.0
SHARD = "ray::KVShard"


class Shares:
    """Lets the processes of shards that serve run a `share` of the time, until it is left."""

    def __init__(self, server: Server, share: float) -> None:
        self._server = server
        self._share = share
        self._holding: dict[int, subprocess.Popen[bytes]] = {}

    def hold(self, serving: int) -> None:
        """The oldest are those that serve: one that loads is not held, as no device would."""
        holding = [one for one in self._holding.values() if one.poll() is None]
        if len(holding) >= serving:
            return
        for process in self._server.processes(SHARD)[:serving]:
            if process.pid not in self._holding:
                self._holding[process.pid] = self._begin(process.pid)

    def _begin(self, pid: int) -> subprocess.Popen[bytes]:
        command = ("-m", "benchmarks.autoscaling.share", str(pid), str(self._share))
        return subprocess.Popen([sys.executable, *command])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for one in self._holding.values():
            one.terminate()
        for one in self._holding.values():
            one.wait()


async def watch(server: Server, shares: Shares, began: float, samples: list[Sample]) -> None:
    """Look for ever; `began` is a reading of the monotonic clock in seconds."""
    async with server.http() as http:
        while True:
            with suppress(httpx.HTTPError, KeyError):  # the next look tells
                sample = _sample((await http.get("/admin/stats")).json(), began)
                samples.append(sample)
                shares.hold(sample.shards)
            await asyncio.sleep(LOOK_S)


def _sample(stats: dict[str, Any], began: float) -> Sample:
    model = stats["scheduler"]["models"][MODEL]
    return Sample(
        at_s=time.monotonic() - began,
        shards=model["shards"],
        queued=model["queued"],
        running=model["running"],
        utilization=model["utilization"],
        delay=model["delay"]["p95"],
        tpot=model["tpot"]["p95"],
    )
