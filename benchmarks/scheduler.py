"""Placement decisions a second of the scheduler's brain, on one core, without any actor.

    python -m benchmarks.scheduler [--shards 100 1000] [--seconds 2]

Each decision is a whole life: submitted, leased, started, ended; the shards report in batches, as
they do. `cold` prompts share nothing, `template` ones begin with the same page that every shard
holds, `chats` come back to their own pages on one shard, behind a prefix that all share.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from cluster.config import SchedulingConfig
from cluster.events import Reported, Submitted, Tell
from cluster.messages import Lease, PageHash, ShardCapacity, ShardRef, ShardReport, Submission
from cluster.scheduling import SchedulerBrain

CAPACITY = ShardCapacity(block_size=16, total_pages=4096, max_num_seqs=64, max_model_len=8192)
PROMPT_TOKENS = 512
CHATS_PER_SHARD = 8
SHARED_PAGES = 16
PREPARED = 20_000

Pages = tuple[PageHash, ...]


def page(kind: int, number: int, depth: int) -> PageHash:
    return bytes([kind]) + number.to_bytes(8, "big") + depth.to_bytes(7, "big")


TEMPLATE: Pages = tuple(page(0, 0, depth) for depth in range(SHARED_PAGES))


def chat(number: int) -> Pages:
    own = PROMPT_TOKENS // CAPACITY.block_size - SHARED_PAGES
    return TEMPLATE + tuple(page(1, number, depth) for depth in range(own))


@dataclass
class Shards:
    """As many shards as wanted, which start and end all they were leased at their next report."""

    count: int
    numbers: list[int] = field(default_factory=list)
    leased: list[list[str]] = field(default_factory=list)

    def join(self, brain: SchedulerBrain, stored: Callable[[int], Pages]) -> None:
        for shard in range(self.count):
            self.numbers.append(1)
            self.leased.append([])
            report = ShardReport(
                _ref(shard), 1, CAPACITY, CAPACITY.total_pages, full=True, stored=stored(shard)
            )
            brain.handle(Reported(report), 0.0)

    def take(self, lease: Lease) -> None:
        self.leased[int(lease.shard.shard)].append(lease.request_id)

    def report(self, brain: SchedulerBrain, shard: int, now: float) -> None:
        self.numbers[shard] += 1
        ids, self.leased[shard] = tuple(self.leased[shard]), []
        news = ShardReport(
            _ref(shard), self.numbers[shard], CAPACITY, CAPACITY.total_pages, started=ids, ended=ids
        )
        brain.handle(Reported(news), now)


def _ref(shard: int) -> ShardRef:
    return ShardRef(str(shard), "m", str(shard), "1")


def submissions(prompts: Iterator[Pages]) -> Iterator[Submission]:
    for number, pages in enumerate(prompts):
        tenant = f"t{number % 16}"
        yield Submission(f"q{number}", "r", "m", tenant, "P1", PROMPT_TOKENS, 128, 1, pages)


def measure(shards: int, prompts: Iterator[Pages], stored: Callable[[int], Pages], s: float) -> int:
    """Decisions a second; a shard reports once for every eight decisions."""
    brain = SchedulerBrain(SchedulingConfig(), epoch=1)
    cluster = Shards(shards)
    cluster.join(brain, stored)
    asked = itertools.cycle(list(itertools.islice(submissions(prompts), PREPARED)))
    turns = itertools.cycle(range(shards))
    decided, now, begun = 0, 1.0, time.process_time()
    while (spent := time.process_time() - begun) < s:
        for submission in itertools.islice(asked, 8):
            for instruction in brain.handle(Submitted(submission), now):
                if isinstance(instruction, Tell) and isinstance(instruction.decision, Lease):
                    cluster.take(instruction.decision)
                    decided += 1
        now += 0.001
        for _ in range(max(1, shards // 100)):
            cluster.report(brain, next(turns), now)
    return round(decided / spent)


def scenarios(shards: int) -> dict[str, tuple[Iterator[Pages], Callable[[int], Pages]]]:
    chats = shards * CHATS_PER_SHARD
    own = {
        s: sum((chat(s + shards * n) for n in range(CHATS_PER_SHARD)), ()) for s in range(shards)
    }
    return {
        "cold": (itertools.repeat(()), lambda _: ()),
        "template": (itertools.repeat(TEMPLATE), lambda _: TEMPLATE),
        "chats": ((chat(n * 7919 % chats) for n in itertools.count()), lambda s: own[s]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    for shards in arguments.shards:
        figures = {
            name: measure(shards, prompts, stored, arguments.seconds)
            for name, (prompts, stored) in scenarios(shards).items()
        }
        print(json.dumps({"shards": shards, "decisions_per_s": figures}))


if __name__ == "__main__":
    main()
