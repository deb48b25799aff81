"""Random histories of a batcher: whatever happened, output is what it would have been alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from cluster.batching import Batcher
from cluster.batching_config import BatchingConfig
from cluster.blocks import BlockPool
from cluster.folder_tier import FileOrder, FolderTier
from cluster.host_tier import HostTier
from cluster.messages import Assignment, Emitted, FinishReason, Request, TokenDelta
from cluster.steps import StepPlan
from cluster.watermark import OFF, Watermark
from tests.cluster.paged_memory import PagedMemory, alone, assignment, prompt_scores

Arrival = dict[str, Any]

arrivals: st.SearchStrategy[Arrival] = st.fixed_dictionaries(
    {
        "prompt": st.one_of(
            st.lists(st.integers(0, 1), min_size=1, max_size=12).map(tuple),
            st.integers(1, 12).map(lambda length: (7,) * length),
        ),
        "max_tokens": st.sampled_from([0, 1, 4, 12, 20]),
        "choices": st.sampled_from([1, 1, 2, 4]),
        "stop": st.sampled_from([(), (), (0,), (1, 2)]),
        "prompt_logprobs": st.sampled_from([None, 0]),
        "salt": st.sampled_from([b"a", b"a", b"b"]),
        "rank": st.sampled_from([0, 0, 1, 2]),
        "ttft_s": st.sampled_from([None, 0.8]),
    }
)


@dataclass
class Told:
    """What the door heard of one choice."""

    tokens: tuple[int, ...] = ()
    finish: FinishReason | None = None
    cancelled: bool = False
    deltas: list[TokenDelta] = field(default_factory=list)

    @property
    def goes_on(self) -> bool:
        return self.finish is None and not self.cancelled


class BatcherHistories(RuleBasedStateMachine):
    """Arrivals, cancels, moves and steps in any order, on pools that are nearly always too small.

    A move ends a request and takes it in again under another id, with what is out of it: to a
    batcher, that is how a request comes whose first shard died.
    """

    ids = Bundle("ids")

    @initialize(
        block_size=st.integers(1, 4),
        spare_pages=st.integers(0, 3),
        max_model_len=st.integers(13, 24),
        max_num_seqs=st.sampled_from([6, 5, 3, 1]),
        max_batch_tokens=st.sampled_from([8, 5, 3, 16, 1]),
        prefix_caching=st.booleans(),
        gather_copies=st.booleans(),
        host_slots=st.sampled_from([0, 0, 1, 2, 5, 40]),
        high_water=st.sampled_from([1.0, 0.85, 0.6, 0.3]),
        guesses=st.sampled_from([4, 0, 2]),
        folder=st.sampled_from([0, 0, 3, 40]),
        loads=st.sampled_from([1, 2, math.inf]),
        worth=st.sampled_from([1, 3, 6, 99]),
    )
    def start(
        self,
        block_size: int,
        spare_pages: int,
        max_model_len: int,
        max_num_seqs: int,
        max_batch_tokens: int,
        prefix_caching: bool,
        gather_copies: bool,
        host_slots: int,
        high_water: float,
        guesses: int,
        folder: int,
        loads: float,
        worth: int,
    ) -> None:
        pages = -(-max_model_len // block_size) + spare_pages
        host = HostTier(host_slots, FolderTier(folder))
        self.pool = BlockPool(pages, block_size, prefix_caching, host)
        self.config = BatchingConfig(
            max_num_seqs=max_num_seqs,
            max_batch_tokens=max_batch_tokens,
            prompt_lookup_tokens=guesses,
        )
        watermark = Watermark(high_water * pages, 0.8 * high_water * pages)
        watermark = watermark if host_slots else OFF
        self.batcher = Batcher(self.pool, self.config, max_model_len, watermark, loads, worth)
        self.loads = loads
        self.orders: list[FileOrder] = []
        self.memory = PagedMemory(block_size, gather_copies)
        self.max_model_len = max_model_len
        self.requests: dict[str, Request] = {}
        self.assigned: dict[str, Assignment] = {}
        self.told: dict[tuple[str, int], Told] = {}
        self.started: list[str] = []
        self.ended: list[str] = []
        self.suspects: set[str] = set()
        self.index: set[bytes] = set()

    @rule(target=ids, burst=st.lists(arrivals, min_size=1, max_size=5))
    def admit(self, burst: list[Arrival]) -> object:
        return multiple(*[self._admit(arrival) for arrival in burst])

    @rule(request_id=consumes(ids))
    def cancel(self, request_id: str) -> None:
        self._cancel(request_id, None)

    @rule(target=ids, request_id=consumes(ids), choice=st.integers(0, 3))
    def cancel_choice(self, request_id: str, choice: int) -> object:
        self._cancel(request_id, choice)
        return multiple(request_id)

    @rule(target=ids, request_id=consumes(ids), suspect=st.booleans())
    def move(self, request_id: str, suspect: bool) -> object:
        request = replace(self.requests[request_id], request_id=f"{request_id}~")
        mine = {c: self.told[request_id, c] for c in range(request.choices)}
        emitted = [Emitted(c, t.tokens) for c, t in mine.items() if t.goes_on]
        if not emitted:
            return multiple(request_id)
        self.batcher.cancel(request_id)
        for choice, told in mine.items():
            del self.told[request_id, choice]
            self.told[request.request_id, choice] = told
        self._take_in(
            replace(self.assigned[request_id], request=request, emitted=tuple(emitted)), suspect
        )
        return multiple(request.request_id)

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self._step(None)

    @rule(request_id=consumes(ids), choice=st.one_of(st.none(), st.integers(0, 3)))
    def step_with_a_cancel_midway(self, request_id: str, choice: int | None) -> None:
        self._step((request_id, choice))

    @rule(count=st.integers(1, 6), goes_well=st.sampled_from([True, True, True, False]))
    def work_on_files(self, count: int, goes_well: bool) -> None:
        orders, self.orders = self.orders[:count], self.orders[count:]
        for order in orders:
            self.pool.settle(self.memory.work_on(order, goes_well))

    @rule()
    def read_events(self) -> None:
        self._read_events()

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "batcher"):
            self.batcher.verify()
            stats = self.pool.stats()
            assert stats.used + stats.cached + stats.free == stats.total

    def teardown(self) -> None:
        if not hasattr(self, "batcher"):
            return
        while self.batcher.has_work:
            self._step(None)
            self.batcher.verify()
        self._drain()
        self.work_on_files(len(self.orders), goes_well=True)
        self._read_events()
        assert self.batcher.plan() is None
        assert self.pool.stats().used == 0
        assert sorted(self.ended) == sorted(self.requests)
        for (request_id, choice), told in self.told.items():
            self._check_output(self.requests[request_id], choice, told)

    def _admit(self, arrival: Arrival) -> str:
        request_id = f"r{len(self.requests)}"
        self._take_in(assignment(request_id, **arrival), suspect=False)
        choices = range(self.requests[request_id].choices)
        self.told.update({(request_id, choice): Told() for choice in choices})
        return request_id

    def _take_in(self, assigned: Assignment, suspect: bool) -> None:
        request_id = assigned.request.request_id
        self.batcher.admit(replace(assigned, suspect=suspect))
        self.assigned[request_id] = assigned
        self.requests[request_id] = assigned.request
        self.suspects |= {request_id} if suspect else set()

    def _cancel(self, request_id: str, choice: int | None) -> None:
        self.batcher.cancel(request_id, choice)
        for (other, at), told in self.told.items():
            if other == request_id and choice in (None, at):
                told.cancelled = True

    def _step(self, cancel_midway: tuple[str, int | None] | None) -> None:
        busy = self.batcher.has_work
        plan = self.batcher.plan()
        self.orders += () if plan else self.pool.drain_orders()
        if plan is None:
            assert not busy or self.pool.awaits_files
            self.work_on_files(1, goes_well=True)
            return
        self._check_loads(plan)
        assert 0 < sum(c.rows for c in plan.chunks) <= self.config.max_batch_tokens
        assert len(plan.chunks) <= self.config.max_num_seqs
        planned = {chunk.sequence.request.request_id for chunk in plan.chunks}
        assert planned == set(self.batcher.computing())
        assert len(planned & self.suspects - set(self.started)) <= 1
        result = self.memory.compute(plan)
        self.orders += self.pool.drain_orders()
        if cancel_midway is not None:
            self._cancel(*cancel_midway)
        for delta in self.batcher.settle(plan, result):
            self._hear(delta)
        self._drain()

    def _check_loads(self, plan: StepPlan) -> None:
        """Who is first in a step may bring back all that he needs; beside him there is a bound."""
        first = plan.chunks[0].sequence
        others = sum(load.page not in first.blocks for load in plan.loads)
        assert others <= self.loads

    def _drain(self) -> None:
        progress = self.batcher.drain_progress()
        self.started += progress.started
        self.ended += progress.ended

    def _read_events(self) -> None:
        events = self.pool.drain_events()
        assert not self.index & set(events.stored)
        assert self.index >= set(events.removed)
        self.index = (self.index | set(events.stored)) - set(events.removed)
        assert self.index == set(self.pool.findable())

    def _hear(self, delta: TokenDelta) -> None:
        told = self.told[delta.request_id, delta.choice]
        assert told.finish is None
        assert not told.cancelled
        told.tokens += delta.tokens
        told.finish = delta.finish
        told.deltas.append(delta)

    def _check_output(self, request: Request, choice: int, told: Told) -> None:
        tokens, finish = alone(request, choice, self.max_model_len)
        if told.finish is None:
            assert told.cancelled
            assert told.tokens == tokens[: len(told.tokens)]
        else:
            assert (told.tokens, told.finish) == (tokens, finish)
        started = {one.rstrip("~") for one in self.started}
        assert (request.request_id.rstrip("~") in started) or not told.deltas
        wanted = request.sampling.prompt_logprobs is not None and choice == 0
        scored = [delta.prompt_logprobs for delta in told.deltas if delta.prompt_logprobs]
        expected = [prompt_scores(request.prompt)] if wanted and told.deltas else []
        assert scored == expected
        assert all(not delta.prompt_logprobs for delta in told.deltas[1:])


TestBatcherHistories = BatcherHistories.TestCase
TestBatcherHistories.settings = settings(max_examples=400, stateful_step_count=40)
