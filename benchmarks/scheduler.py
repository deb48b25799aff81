"""Placement decisions a second of the scheduler's brain, on one core, without any actor.

    python -m benchmarks.scheduler [--shards 100 1000] [--seconds 2]

`placements_per_s` counts the time that submissions take until their lease; `lives_per_s` the whole
of each request in the books: submitted, leased, started, ended; a shard reports four at a time.
`cold` prompts share nothing, `template` ones are all the same and every shard holds them, `chats`
come back to their own pages on one shard, behind a prefix that all share.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from cluster.events import Instruction, Reported, Submitted, Tell
from cluster.garbage import BRAIN, collect_seldom
from cluster.messages import Lease, PageHash, ShardRef, Submission
from cluster.reports import ShardCapacity, ShardReport
from cluster.scheduling import SchedulerBrain
from cluster.scheduling_config import PlacementConfig, SchedulingConfig

CAPACITY = ShardCapacity(block_size=16, total_pages=4096, max_num_seqs=64, max_model_len=8192)
PROMPT_TOKENS = 512
CHATS_PER_SHARD = 8
SHARED_PAGES = 16
PREPARED = 20_000
LEASES_A_REPORT = 4
BATCH = 32

Pages = tuple[PageHash, ...]


def page(kind: int, number: int, depth: int) -> PageHash:
    return bytes([kind]) + number.to_bytes(8, "big") + depth.to_bytes(7, "big")


TEMPLATE: Pages = tuple(page(0, 0, depth) for depth in range(SHARED_PAGES))


def chat(number: int) -> Pages:
    own = PROMPT_TOKENS // CAPACITY.block_size - SHARED_PAGES
    return TEMPLATE + tuple(page(1, number, depth) for depth in range(own))


@dataclass
class Shards:
    """As many shards as wanted; each reports at every fourth lease that all its leases ended."""

    count: int
    numbers: list[int] = field(default_factory=list)
    leased: list[list[str]] = field(default_factory=list)
    due: list[int] = field(default_factory=list)

    def join(self, brain: SchedulerBrain, stored: Callable[[int], Pages]) -> None:
        for shard in range(self.count):
            self.numbers.append(1)
            self.leased.append([])
            report = ShardReport(
                _ref(shard), 1, CAPACITY, CAPACITY.total_pages, full=True, stored=stored(shard)
            )
            brain.handle(Reported(report), 0.0)

    def take(self, instructions: Iterable[Instruction]) -> int:
        """Take the leases that were given, and count them."""
        told = (each.decision for each in instructions if isinstance(each, Tell))
        leases = [decision for decision in told if isinstance(decision, Lease)]
        for lease in leases:
            shard = int(lease.shard.shard)
            self.leased[shard].append(lease.request_id)
            if len(self.leased[shard]) == LEASES_A_REPORT:
                self.due.append(shard)
        return len(leases)

    def report_due(self, brain: SchedulerBrain, now: float) -> int:
        due, self.due = self.due, []
        return sum(self._report(brain, shard, now) for shard in due)

    def _report(self, brain: SchedulerBrain, shard: int, now: float) -> int:
        self.numbers[shard] += 1
        ids, self.leased[shard] = tuple(self.leased[shard]), []
        news = ShardReport(
            _ref(shard),
            self.numbers[shard],
            CAPACITY,
            CAPACITY.total_pages,
            started=ids,
            ended=ids,
            produced=(64,) * len(ids),
        )
        return self.take(brain.handle(Reported(news), now))


def _ref(shard: int) -> ShardRef:
    return ShardRef(str(shard), "m", str(shard), "1")


def submissions(prompts: Iterator[Pages]) -> Iterator[Submission]:
    for number, pages in enumerate(prompts):
        tenant = f"t{number % 16}"
        yield Submission(f"q{number}", "r", "m", tenant, "P1", PROMPT_TOKENS, 128, 1, pages)


def measure(
    shards: int, prompts: Iterator[Pages], stored: Callable[[int], Pages], seconds: float
) -> dict[str, int]:
    """A second of CPU time: submissions decided, and requests from submission to end."""
    endless = PlacementConfig(prefill_window_tokens=2**30)
    brain = SchedulerBrain(SchedulingConfig(gather_max_s=0, placement=endless), epoch=1)
    cluster = Shards(shards)
    cluster.join(brain, stored)
    asked = itertools.cycle(
        [Submitted(each) for each in itertools.islice(submissions(prompts), PREPARED)]
    )
    collect_seldom(BRAIN)  # as the actor does
    decided, deciding, now, begun = 0, 0.0, 1.0, time.process_time()
    while (at := time.process_time()) - begun < seconds:
        told = [brain.handle(event, now) for event in itertools.islice(asked, BATCH)]
        deciding += time.process_time() - at
        decided += cluster.take(itertools.chain.from_iterable(told))
        now += 0.001
        assert not cluster.report_due(brain, now), "shards were full, so not all was placed at once"
    spent = time.process_time() - begun
    return {"placements_per_s": round(decided / deciding), "lives_per_s": round(decided / spent)}


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
        print(json.dumps({"shards": shards} | figures))


if __name__ == "__main__":
    main()
