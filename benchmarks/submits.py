"""Submissions a second that the real scheduler actor decides, end to end, from two processes.

    python -m benchmarks.submits [--per-s 3000] [--seconds 10] [--shards 16]

Each client is a process with the connection that routers have, and submits its part at a steady
pace, whether or not earlier ones are decided. It also plays half of the shards: what was leased to
one is reported as started and ended 20 ms later, as often as real shards report at most. Times are
from the submission in one process to the decision in it, with Ray between.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import psutil
import ray

from actors.creation import create_scheduler
from actors.scheduler_client import SchedulerClient
from benchmarks.metrics import MS, percentile
from benchmarks.servers import ROOT
from cluster.messages import Lease, ShardRef, Submission
from cluster.reports import Prefilling, ShardCapacity, ShardReport
from cluster.scheduling_config import SchedulingConfig

CLIENTS = 2
CAPACITY = ShardCapacity(block_size=16, total_pages=65_536, max_num_seqs=1024, max_model_len=8192)
PROMPT_TOKENS = 512
PAGES = PROMPT_TOKENS // CAPACITY.block_size
GAP_S = 0.02
TICK_S = 0.005


@dataclass
class Played:
    """A shard that does its work at once."""

    ref: ShardRef
    number: int = 0
    leased: list[str] = field(default_factory=list)

    def report(self) -> ShardReport:
        self.number += 1
        ids, self.leased = tuple(self.leased), []
        return ShardReport(
            shard=self.ref,
            number=self.number,
            capacity=CAPACITY,
            free_pages=CAPACITY.total_pages,
            started=ids,
            ended=ids,
            full=self.number == 1,
            produced=(64,) * len(ids),
            prefilling=Prefilling(PROMPT_TOKENS * len(ids), GAP_S),
        )


class Client:
    """A router and some shards in one process; a model of their own keeps them apart."""

    def __init__(self, number: int, scheduler: Any, namespace: str, shards: int) -> None:
        names = [f"{number}-{shard}" for shard in range(shards)]
        self._name, self._model = f"client-{number}", f"m{number}"
        self._scheduler = scheduler
        self._shards = {name: Played(ShardRef(name, self._model, name, "1")) for name in names}
        self._client = SchedulerClient(self._name, namespace)
        self._took_s: list[float] = []
        self._refused = 0

    async def drive(self, per_s: float, seconds: float) -> tuple[list[float], int, float]:
        """Seconds until each decision, how many were refusals, and when the last one came."""
        self._took_s, self._refused = [], 0
        await asyncio.gather(*(self._report(shard) for shard in self._shards.values()))
        reporting = asyncio.create_task(self._keep_reporting())
        began, asked, tasks = time.perf_counter(), 0, []
        while (passed := time.perf_counter() - began) < seconds:
            due = int(passed * per_s)
            tasks += [asyncio.create_task(self._place(number)) for number in range(asked, due)]
            asked = due
            await asyncio.sleep(TICK_S)
        await asyncio.gather(*tasks)
        lasted_s = time.perf_counter() - began
        reporting.cancel()
        return self._took_s, self._refused, lasted_s

    async def _place(self, number: int) -> None:
        pages = tuple([b"%8d%8d" % (number % 997, depth) for depth in range(PAGES)])
        tenant = f"t{number % 16}"
        request_id = f"{self._model}-{uuid4().hex}"
        submission = Submission(
            request_id, self._name, self._model, tenant, "P1", PROMPT_TOKENS, 128, 1, pages
        )
        began = time.perf_counter()
        decision = await self._client.place(submission)
        self._took_s.append(time.perf_counter() - began)
        if isinstance(decision, Lease):
            self._shards[decision.shard.shard].leased.append(request_id)
        else:
            self._refused += 1

    async def _keep_reporting(self) -> None:
        while True:
            news = [shard for shard in self._shards.values() if shard.leased]
            await asyncio.gather(*map(self._report, news), asyncio.sleep(GAP_S))

    async def _report(self, shard: Played) -> None:
        await self._scheduler.report.remote(shard.report())


def main() -> None:
    options = _options()
    paths = {"env_vars": {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}}
    ray.init(
        address="local",
        num_cpus=CLIENTS,
        namespace="submits",
        include_dashboard=False,
        log_to_driver=False,
        runtime_env=paths,
    )
    try:
        print(json.dumps(_measure(options)))
    finally:
        ray.shutdown()


def _measure(options: argparse.Namespace) -> dict[str, float]:
    scheduler = create_scheduler(SchedulingConfig(), "submits").handle
    ray.get(scheduler.ping.remote())
    process = _scheduler_process()
    actor: Any = ray.remote(num_cpus=1)(Client)
    each = options.shards // CLIENTS
    clients = [actor.remote(number, scheduler, "submits", each) for number in range(CLIENTS)]
    _drive(clients, options.per_s, 1.0)
    cpu_s = sum(process.cpu_times()[:2])
    told = _drive(clients, options.per_s, options.seconds)
    cpu_s = sum(process.cpu_times()[:2]) - cpu_s
    ray.get(scheduler.verify.remote())
    took_ms = [MS * one for times, _, _ in told for one in times]
    return {
        "offered_per_s": options.per_s,
        "decided_per_s": round(sum(len(times) / lasted_s for times, _, lasted_s in told)),
        "refused": sum(refused for _, refused, _ in told),
        "p50_ms": round(percentile(took_ms, 50), 1),
        "p99_ms": round(percentile(took_ms, 99), 1),
        "scheduler_cpu_share": round(cpu_s / max(lasted_s for _, _, lasted_s in told), 2),
    }


def _drive(
    clients: Sequence[Any], per_s: float, seconds: float
) -> list[tuple[list[float], int, float]]:
    drives = [client.drive.remote(per_s / CLIENTS, seconds) for client in clients]
    told: list[tuple[list[float], int, float]] = ray.get(drives)
    return told


def _scheduler_process() -> psutil.Process:
    ours = psutil.Process().children(recursive=True)
    return next(one for one in ours if "BatchScheduler" in " ".join(one.cmdline()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.submits", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--per-s", type=float, default=3000.0, help="submissions a second, in all")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--shards", type=int, default=16)
    return parser.parse_args()


if __name__ == "__main__":
    main()
