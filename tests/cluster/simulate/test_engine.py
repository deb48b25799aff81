"""The shard on paper against the real Batcher: the same steps at the same times."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster import expected, promises
from cluster.batching import Batcher
from cluster.batching_config import BatchingConfig
from cluster.blocks import BlockPool, page_hashes
from cluster.messages import Submission
from cluster.pacing import LEAST, WORTHWHILE
from cluster.reports import NO_PREFILLING, Prefilling
from cluster.simulate.costs import Device, StepCost
from cluster.simulate.engine import SimulatedEngine
from cluster.simulate.workload import MODEL, ROUTER, Offered
from cluster.steps import StepPlan
from tests.cluster.paged_memory import PagedMemory, assignment

PAGE = 4
COST = StepCost(fixed_ms=10.0, prefill_ms=1.0, decode_ms=0.5, context_ms=0.01, pair_ms=0.02)


@dataclass(frozen=True)
class Job:
    """A prompt of `own` tokens after the first `shared` of a common text, coming after `gap_s`."""

    gap_s: float
    shared: int
    own: int
    output: int
    rank: int = 0
    tpot_s: float | None = None
    ttft_s: float | None = None

    def prompt(self, number: int) -> tuple[int, ...]:
        common = tuple(position * position % 11 for position in range(self.shared))
        return (*common, *(20 + number for _ in range(self.own)))


# Steps take whole hundredths of a millisecond. These do not, nor do a dozen of them together, so
# that nobody arrives at the very end of a step, where who comes first is a matter of rounding.
SHORT_S, MEDIUM_S, LONG_S = 0.0012303, 0.0371003, 0.2417003

Times = dict[str, tuple[float, float, int]]
"""First token, end, and cached tokens of each request."""

jobs = st.lists(
    st.builds(
        Job,
        gap_s=st.sampled_from([0.0, 0.0, SHORT_S, MEDIUM_S, LONG_S]),
        shared=st.integers(0, 16),
        own=st.integers(1, 20),
        output=st.integers(1, 24),
        rank=st.integers(0, 2),
        # Two below what steps take, so that prompts of lower classes are held back.
        tpot_s=st.sampled_from([None, 0.012, 0.025, 9.0]),
    ),
    min_size=3,
    max_size=12,
)


worths = st.sampled_from([1, 8, 128])
"""Tokens that a step has to compute of a prompt for it to wait."""


def arrivals(work: Iterable[Job]) -> list[tuple[float, str, Job, tuple[int, ...]]]:
    now, found = 0.0, []
    for number, job in enumerate(work):
        now += job.gap_s
        found.append((now, f"r{number}", job, job.prompt(number)))
    return found


def step_s(plan: StepPlan) -> float:
    decodes = [c for c in plan.chunks if c.start + 1 == len(c.sequence.tokens)]
    prefills = [c for c in plan.chunks if c.start + 1 < len(c.sequence.tokens)]
    pairs = sum(c.count * (c.start + (c.count + 1) / 2) for c in prefills)
    context = sum(len(c.sequence.tokens) for c in decodes)
    return COST.step_s(sum(c.count for c in prefills), pairs, len(decodes), context)


def real(work: list[Job], pages: int, seqs: int, budget: int, worth: int = WORTHWHILE) -> Times:
    pool = BlockPool(pages, PAGE, prefix_caching=True)
    config = BatchingConfig(max_num_seqs=seqs, max_batch_tokens=budget)
    batcher = Batcher(pool, config, pages * PAGE, worth=worth)
    memory = PagedMemory(PAGE)
    todo, now = arrivals(work), 0.0
    times: Times = {}
    while todo or batcher.has_work:
        if not batcher.has_work:
            now = max(now, todo[0][0])
        while todo and todo[0][0] <= now:
            _, name, job, prompt = todo.pop(0)
            request = assignment(
                name, prompt, job.output, rank=job.rank, tpot_s=job.tpot_s, ttft_s=job.ttft_s
            )
            batcher.admit(request)
        plan = batcher.plan()
        assert plan is not None
        took_s = step_s(plan)
        now += took_s
        for delta in batcher.settle(plan, memory.compute(plan), took_s):
            first, _, cached = times.get(delta.request_id, (now, now, delta.cached_tokens))
            times[delta.request_id] = first, now, cached
    return times


def on_paper(work: list[Job], pages: int, seqs: int, budget: int, worth: int = WORTHWHILE) -> Times:
    engine = SimulatedEngine(Device(COST, pages * PAGE, seqs, budget), PAGE, worth)
    todo, now = arrivals(work), 0.0
    first: dict[str, float] = {}
    times: Times = {}
    while todo or engine.run:
        if engine.run is None or (todo and todo[0][0] <= engine.run.end_s):
            now, name, job, prompt = todo.pop(0)
            promised = job.rank, job.tpot_s, job.ttft_s
            engine.admit(offered(name, prompt, job.output), now, *promised)
            # All that come at the same moment join the same step.
            if engine.run is None and not (todo and todo[0][0] == now):
                engine.begin(now)
            continue
        now = engine.run.end_s
        outcome = engine.finish()
        first.update({one.request_id: now for one in outcome.started})
        for one in outcome.ended:
            times[one.request_id] = first[one.request_id], now, one.cached or 0
        engine.verify()
        engine.begin(now)
    return times


def offered(name: str, prompt: tuple[int, ...], output: int) -> Offered:
    hashes = page_hashes(prompt, PAGE, b"")
    submission = Submission(name, ROUTER, MODEL, "t", "P1", len(prompt), output, 1, hashes)
    return Offered(0.0, submission, output)


@given(work=jobs, seqs=st.integers(1, 6), budget=st.integers(4, 40), worth=worths)
def test_with_pages_to_spare_it_takes_the_batchers_steps(
    work: list[Job], seqs: int, budget: int, worth: int
) -> None:
    times = real(work, 400, seqs, budget, worth)

    assert on_paper(work, 400, seqs, budget, worth) == {
        name: pytest.approx(each, abs=1e-9) for name, each in times.items()
    }


@settings(max_examples=300)
@given(
    work=jobs,
    seqs=st.integers(2, 6),
    budget=st.integers(4, 40),
    pages=st.integers(15, 25),
    worth=worths,
)
def test_short_of_pages_it_evicts_and_preempts_as_the_batcher_does(
    work: list[Job], seqs: int, budget: int, pages: int, worth: int
) -> None:
    times = real(work, pages, seqs, budget, worth)

    assert on_paper(work, pages, seqs, budget, worth) == {
        name: pytest.approx(each, abs=1e-9) for name, each in times.items()
    }


long_jobs = st.lists(
    st.builds(
        Job,
        gap_s=st.sampled_from([0.0, SHORT_S, MEDIUM_S]),
        shared=st.integers(0, 16),
        own=st.integers(1, 200),
        output=st.integers(1, 40),
        rank=st.integers(0, 2),
        tpot_s=st.sampled_from([None, 0.012, 0.025, 0.08]),
        ttft_s=st.sampled_from([None, 0.2, 0.5, 5.0]),
    ),
    min_size=3,
    max_size=12,
)


@given(work=long_jobs, seqs=st.integers(2, 8), budget=st.integers(40, 300), worth=worths)
def test_for_the_sake_of_streams_and_of_who_may_come_it_holds_prompts_back_as_the_batcher_does(
    work: list[Job], seqs: int, budget: int, worth: int
) -> None:
    times = real(work, 1000, seqs, budget, worth)

    assert on_paper(work, 1000, seqs, budget, worth) == {
        name: pytest.approx(each, abs=1e-9) for name, each in times.items()
    }


comers = st.lists(
    st.builds(
        lambda gap_s, rank, own: Job(
            gap_s, 0, own[rank], 1 + 9 * rank, rank=rank, ttft_s=[0.2, 0.3, None][rank]
        ),
        gap_s=st.sampled_from([0.0, SHORT_S, LONG_S]),
        rank=st.integers(0, 2),
        own=st.tuples(st.integers(1, 20), st.integers(1, 100), st.integers(100, 300)),
    ),
    min_size=3,
    max_size=12,
)


@given(work=comers, seqs=st.integers(2, 8), steps=st.integers(1, 30))
@example(  # the second comes in the middle of a run, and the third goes on when it is forgotten
    work=[Job(0, 0, 900, 1), Job(LONG_S, 0, 3, 1, 1, None, 0.2), Job(0, 0, 900, 1, 2)],
    seqs=3,
    steps=11,
)
def test_it_expects_a_class_for_as_many_steps_as_the_batcher_does(
    work: list[Job], seqs: int, steps: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expected, "EXPECTED_STEPS", steps)
        patch.setattr(promises, "SHORTEST", LEAST)
        times = real(work, 1000, seqs, 100)

        assert on_paper(work, 1000, seqs, 100) == {
            name: pytest.approx(each, abs=1e-9) for name, each in times.items()
        }


def test_a_step_that_holds_prompts_back_says_nothing_of_the_shards_speed() -> None:
    engine = SimulatedEngine(Device(COST, 4000, 8, 100), PAGE)

    def speed(now: float) -> Prefilling:
        engine.begin(now)
        engine.finish()
        return engine.drain_prefilling()

    engine.admit(offered("stream", (1, 2, 3), 30), 0.0, 0, 0.02)
    speed(0.0)
    engine.admit(offered("batch", tuple(range(300)), 2), 1.0, 2)
    assert speed(1.0).tokens == 99
    assert speed(2.0) == NO_PREFILLING
