"""Random histories of the whole cluster: the books balance after each event, nothing is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import hypothesis.strategies as st
from hypothesis import given, settings

from cluster.events import (
    Acknowledge,
    DoorGone,
    Event,
    Reported,
    RouterGone,
    ShardGone,
    Submitted,
    Tell,
    Ticked,
    Withdrawn,
)
from cluster.messages import Decision, Lease, PageHash, RefusalKind, ShardRef, Submission
from cluster.reports import HeldRequest, ShardCapacity, ShardReport
from cluster.scheduling import SchedulerBrain
from cluster.scheduling_config import SchedulingConfig, SlaClass, TenantConfig

CONFIG = SchedulingConfig(
    classes=(
        SlaClass(name="P0", weight=4, ttft_s=1, aging_s=2),
        SlaClass(name="P1", queue_timeout_s=7),
        SlaClass(name="P2", fill=0.5, burst_share=0, max_queued=6),
    ),
    tenants=(
        TenantConfig(name="poor", tokens_per_window=120, burst_tokens=60),
        TenantConfig(name="narrow", max_concurrency=1, weight=3),
        TenantConfig(name="small", max_pages=8),
    ),
    budget_window_s=20,
    max_tenants=3,
    max_queued=4,
    claim_timeout_s=5,
    shard_timeout_s=8,
    not_ready_timeout_s=6,
    max_indexed_pages=9,
)
CAPACITY = ShardCapacity(block_size=4, total_pages=12, max_num_seqs=3, max_model_len=40)
PAGES = tuple(bytes([n]) * 16 for n in range(8))


@dataclass
class FakeShard:
    """A shard as the scheduler sees it: it holds requests and pages, and reports them."""

    ref: ShardRef
    held: dict[str, HeldRequest] = field(default_factory=dict)
    pages: set[PageHash] = field(default_factory=set)
    number: int = 0
    resync: bool = True

    def next_report(self, random: Random) -> ShardReport:
        """Some of what it holds starts and ends, some pages come and go."""
        self.number += 1
        started = tuple(key for key in self.held if random.random() < 0.3)
        ended = tuple(key for key in self.held if random.random() < 0.3)
        stored = {page for page in PAGES if random.random() < 0.2}
        removed = {page for page in PAGES if page in self.pages - stored and random.random() < 0.2}
        self.pages = (self.pages | stored) - removed
        self.held = {key: request for key, request in self.held.items() if key not in ended}
        free_pages = max(CAPACITY.total_pages - 3 * len(self.held), 0)
        if self.resync:
            held = tuple(self.held.values())
            stored, removed, started, ended = self.pages, set(), (), ()
        else:
            held = ()
        return ShardReport(
            self.ref,
            self.number,
            CAPACITY,
            free_pages,
            started,
            ended,
            tuple(sorted(stored)),
            tuple(sorted(removed)),
            self.resync,
            held,
            tuple(random.randint(0, 8) for _ in ended[random.randint(0, 1) * len(ended) :]),
        )


class History:
    """One cluster and what has become of each request; `seen` counts what happened in it."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 100.0
        self.epoch = 1
        self.brain = SchedulerBrain(CONFIG, self.epoch)
        self.shards: dict[str, FakeShard] = {}
        self.submissions: dict[str, Submission] = {}
        self.open: dict[str, Submission] = {}
        self.leases: dict[str, Lease] = {}
        self.count = 0
        self.seen: Counter[str] = Counter()

    def send(self, event: Event) -> None:
        """Then, as nobody may wait who could be served, a tick has no lease left to give."""
        self.follow(event)
        assert not self.follow(Ticked())

    def follow(self, event: Event) -> int:
        """Let the event happen, do as told, check the books, and count the leases given."""
        leases = f"{type(event).__name__} leases"
        before = self.seen[leases]
        for instruction in self.brain.handle(event, self.now):
            match instruction:
                case Tell(router, decision):
                    assert router == self.open.pop(decision.request_id).router
                    self.record(leases, decision)
                case Acknowledge(shard, ack):
                    self.shards[shard.shard].resync = ack.resync
        self.brain.verify()
        assert sum(self.brain.stats().queued.values()) == len(self.open)
        return self.seen[leases] - before

    def record(self, leases: str, decision: Decision) -> None:
        if isinstance(decision, Lease):
            assert decision.epoch == self.epoch
            self.leases[decision.request_id] = decision
            self.seen[leases] += 1
        else:
            wakes = self.submissions[decision.request_id].wakes
            assert not (wakes and decision.kind is RefusalKind.NOT_READY)
            self.seen[decision.kind] += 1

    def move(self) -> None:
        moves = {
            self.submit: 40,
            self.submit_again: 5,
            self.submit_again_what_was_decided: 5,
            self.withdraw: 16,
            self.claim: 25,
            self.report: 30,
            self.time_passes: 10,
            self.shard_joins: 6,
            self.shard_dies: 1,
            self.router_dies: 5,
            self.door_dies: 5,
            self.scheduler_restarts: 1,
        }
        self.random.choices(list(moves), list(moves.values()))[0]()

    def submit(self) -> None:
        self.count += 1
        pages = tuple(self.random.sample(PAGES, self.random.randint(0, 4)))
        submission = Submission(
            request_id=f"q{self.count}",
            router=self.random.choice(["r1", "r2"]),
            model=self.random.choice(["m"] * 9 + ["other"]),
            tenant=self.random.choice(["poor", "narrow", "small", "other"]),
            sla=self.random.choice(["P0", "P1", "P2", "unheard of"]),
            prompt_tokens=self.random.choice([1, 4, 17, 36, 37]),
            max_tokens=4,
            choices=self.random.choice([1, 1, 1, 2, 4]),
            page_hashes=pages,
            deadline_s=self.random.choice([None] * 8 + [0.0, 3.0]),
            door=self.random.choice(["", "d1", "d2"]),
            wakes=self.random.choice([False, False, True]),
        )
        self.submissions[submission.request_id] = submission
        self.ask(submission)

    def ask(self, submission: Submission) -> None:
        self.open[submission.request_id] = submission
        self.send(Submitted(submission))

    def submit_again(self) -> None:
        if self.open:
            self.ask(self.random.choice(list(self.open.values())))

    def submit_again_what_was_decided(self) -> None:
        """The answer was lost, or the shard failed it."""
        if self.submissions:
            self.ask(self.random.choice(list(self.submissions.values())))

    def withdraw(self) -> None:
        if self.submissions:
            among = self.random.choice([self.open or self.leases, self.submissions])
            request_id = self.random.choice(list(among or self.submissions))
            self.open.pop(request_id, None)
            self.send(Withdrawn(request_id))

    def router_dies(self) -> None:
        router = self.random.choice(["r1", "r2"])
        self.open = {key: s for key, s in self.open.items() if s.router != router}
        self.send(RouterGone(router))

    def door_dies(self) -> None:
        """Its routers are told of what it had waiting, and of nothing else."""
        self.send(DoorGone(self.random.choice(["d1", "d2"])))

    def claim(self) -> None:
        """A door uses its lease, perhaps one that is no longer in anybody's books."""
        if self.leases:
            lease = self.leases.pop(self.random.choice(list(self.leases)))
            shard = self.shards.get(lease.shard.shard)
            if shard is not None and shard.ref == lease.shard:
                wanted = self.submissions[lease.request_id]
                computed = self.random.choice([0, wanted.prompt_tokens])
                shard.held[lease.request_id] = HeldRequest(
                    lease.request_id,
                    wanted.prompt_tokens,
                    computed,
                    wanted.choices,
                    wanted.tenant,
                    wanted.sla,
                )

    def shard_joins(self) -> None:
        self.count += 1
        name = self.random.choice("abc")
        if name not in self.shards or self.random.random() < 0.2:
            ref = ShardRef(name, "m", f"shard-{name}", str(self.count))
            self.shards[name] = FakeShard(ref)

    def report(self) -> None:
        if self.shards:
            shard = self.shards[self.random.choice(list(self.shards))]
            report = shard.next_report(self.random)
            if self.random.random() > 0.1:  # else it is lost on the way
                self.seen["full report" if report.full else "report"] += 1
                self.send(Reported(report))

    def shard_dies(self) -> None:
        if self.shards:
            shard = self.shards.pop(self.random.choice(list(self.shards)))
            self.send(ShardGone(shard.ref))

    def time_passes(self) -> None:
        self.now += self.random.choice([0.1, 0.5, 3.0, 9.0])
        self.send(Ticked())

    def scheduler_restarts(self) -> None:
        """Its routers submit again what they wait for; its shards are asked for full reports."""
        self.epoch += 1
        self.brain = SchedulerBrain(CONFIG, self.epoch)
        waiting, self.open = self.open, {}
        for submission in waiting.values():
            self.ask(submission)

    def end(self) -> None:
        """Without shards, everybody is told something in time."""
        for shard in list(self.shards.values()):
            self.send(ShardGone(shard.ref))
        for _ in range(3):  # the last shards fall silent, their model is missed, all time is up
            self.now += 120
            self.send(Ticked())
        assert not self.open
        assert self.brain.stats().leased == self.brain.stats().indexed_pages == 0


def lived(seed: int, moves: int) -> History:
    history = History(Random(seed))
    history.shard_joins()
    for _ in range(moves):
        history.move()
    history.end()
    return history


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=100)
def test_every_submission_is_leased_refused_withdrawn_or_still_waits(seed: int) -> None:
    lived(seed, moves=150)


def test_the_histories_reach_every_kind_of_decision() -> None:
    seen = lived(seed=1, moves=8000).seen
    events = ("Submitted", "Reported", "Withdrawn", "RouterGone", "DoorGone")
    leasing = {f"{event} leases" for event in events}
    assert seen.keys() >= leasing | set(RefusalKind) | {"report", "full report"}, seen
