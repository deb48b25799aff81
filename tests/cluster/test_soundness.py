"""Numbers that are not finite: the one request is refused, or the shard is found guilty."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.errors import DeviceFault, InvalidRequest, NotFinite, ShoalError
from cluster.messages import RequestFailed
from cluster.soundness import ALONE
from cluster.steps import StepPlan
from tests.cluster.paged_memory import assignment
from tests.cluster.toy_shard import MakeShard, ToyShard, expected, prompt_of

FLAW = NotFinite("its numbers overflow")


def settle(shard: ToyShard, plan: StepPlan, *flawed: str, flaw: ShoalError = FLAW) -> None:
    """Of the step, the chunks of these requests came out badly."""
    names = [chunk.sequence.request.request_id for chunk in plan.chunks]
    flaws = {number: flaw for number, name in enumerate(names) if name in flawed}
    result = replace(shard.memory.compute(plan), flaws=flaws)
    shard.deltas += shard.batcher.settle(plan, result)
    shard.batcher.verify()


def admit(shard: ToyShard, *names: str, choices: int = 1) -> None:
    for seed, name in enumerate(names):
        shard.batcher.admit(assignment(name, prompt_of(6, seed), choices=choices))


def test_a_request_that_cannot_be_computed_is_refused_and_its_neighbours_go_on(
    make_shard: MakeShard,
) -> None:
    shard = make_shard()
    admit(shard, "a", "b", "c")
    settle(shard, shard.plan(), "b")
    assert shard.batcher.drain_refused() == (RequestFailed("b", "NotFinite", FLAW.message),)
    assert shard.batcher.drain_progress().ended == ("b",)
    shard.finish()
    assert shard.batcher.drain_refused() == ()
    assert shard.output("a") == expected(prompt_of(6, 0))
    assert shard.output("b") == ((), None)
    assert shard.output("c") == expected(prompt_of(6, 2))


def test_all_choices_of_such_a_request_end_those_that_wait_to_be_forked_too(
    make_shard: MakeShard,
) -> None:
    shard = make_shard()
    admit(shard, "a", choices=3)
    settle(shard, shard.plan(), "a")
    assert [one.request_id for one in shard.batcher.drain_refused()] == ["a"]
    assert not shard.batcher.has_work


def test_where_all_of_a_step_come_out_so_the_shard_is_to_blame(make_shard: MakeShard) -> None:
    shard = make_shard()
    admit(shard, "a", "b")
    with pytest.raises(DeviceFault, match="2 requests"):
        settle(shard, shard.plan(), "a", "b")
    assert shard.batcher.computing() == ("a", "b")


def test_so_it_is_where_one_request_after_the_other_comes_out_so_alone(
    make_shard: MakeShard,
) -> None:
    shard = make_shard()
    for number in range(ALONE - 1):
        admit(shard, f"r{number}")
        settle(shard, shard.plan(), f"r{number}")
    admit(shard, "last")
    with pytest.raises(DeviceFault):
        settle(shard, shard.plan(), "last")
    assert len(shard.batcher.drain_refused()) == ALONE - 1


def test_a_token_in_between_speaks_for_the_shard(make_shard: MakeShard) -> None:
    shard = make_shard()
    for number in range(2 * ALONE):
        admit(shard, f"bad{number}")
        settle(shard, shard.plan(), f"bad{number}")
        admit(shard, f"good{number}")
        settle(shard, shard.plan())
        shard.finish()


@pytest.mark.parametrize("scored", [False, True])
def test_so_does_a_chunk_in_between_that_gives_no_token(
    make_shard: MakeShard, scored: bool
) -> None:
    shard = make_shard(budget=4, prefix_caching=False)
    for number in range(2 * ALONE):
        name = f"r{number}"
        wanted = assignment(name, prompt_of(6), prompt_logprobs=0 if scored else None)
        shard.batcher.admit(wanted)
        settle(shard, shard.plan())
        settle(shard, shard.plan(), name)
    assert len(shard.batcher.drain_refused()) == 2 * ALONE


def test_a_chunk_beside_it_that_gives_no_token_speaks_for_the_shard(make_shard: MakeShard) -> None:
    shard = make_shard(budget=8, prefix_caching=False)
    for number in range(2 * ALONE):
        admit(shard, f"bad{number}")
        shard.batcher.admit(assignment(f"long{number}", prompt_of(20, 1)))
        plan = shard.plan()
        assert [chunk.samples for chunk in plan.chunks] == [True, False]
        settle(shard, plan, f"bad{number}")
        shard.batcher.cancel(f"long{number}")
    assert len(shard.batcher.drain_refused()) == 2 * ALONE


def test_a_prompt_refused_midway_leaves_only_pages_of_chunks_that_came_out_well(
    make_shard: MakeShard,
) -> None:
    shard = make_shard(budget=8)
    shard.batcher.admit(assignment("a", prompt_of(24)))
    settle(shard, shard.plan())
    settle(shard, shard.plan(), "a")
    assert not shard.batcher.has_work
    assert len(shard.pool.findable()) == 2


def test_what_requests_do_to_themselves_never_tells_against_the_shard(
    make_shard: MakeShard,
) -> None:
    shard = make_shard()
    for _ in range(ALONE):
        admit(shard, "a", "b")
        settle(shard, shard.plan(), "a", "b", flaw=InvalidRequest("all tokens are banned"))
    refused = shard.batcher.drain_refused()
    assert [(one.request_id, one.kind) for one in refused] == ALONE * [
        ("a", "InvalidRequest"),
        ("b", "InvalidRequest"),
    ]
