"""Sequences whose numbers are not finite: they alone are refused, and leave nothing bad behind."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from queue import SimpleQueue

import pytest
import torch

from actors.engine.engine import Engine, build_engine
from actors.engine.flaws import NO_TOKEN, unsampled
from actors.engine_thread import EngineThread, Outcome
from cluster.batching_config import BatchingConfig
from cluster.config import CacheConfig, ModelConfig
from cluster.errors import DeviceFault, InvalidRequest, NotFinite, ShoalError
from cluster.messages import Request, RequestFailed, Sampling, Stopping, TokenLogprob
from cluster.steps import Chunk
from cluster.steps import Sequence as Known
from tests.engine.driving import GREEDY, Output, assignment, engine_of, request, run, tokens_of
from tests.engine.families import VOCAB, make

POISON = 299
"""The token of which the broken model makes no number."""

DRAWN = Sampling(temperature=1.1, top_p=0.9, seed=3)
FEW_PAGES = 16


def broken_engine(
    *,
    num_blocks: int = 128,
    max_batch_tokens: int = 64,
    deterministic: bool = False,
    prefix_caching: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Engine:
    model = make("llama").to(dtype)
    engine = build_engine(
        model,
        ModelConfig(
            deterministic=deterministic,
            max_model_len=4 * FEW_PAGES,
            cache=CacheConfig(block_size=4, num_blocks=num_blocks, prefix_caching=prefix_caching),
            batching=BatchingConfig(max_num_seqs=8, max_batch_tokens=max_batch_tokens),
        ),
    )
    with torch.no_grad():
        model.get_input_embeddings().weight[POISON] = math.nan
    return engine


def prompt(seed: int, length: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(3, POISON) for _ in range(length)]


def poisoned(name: str, length: int, sampling: Sampling = GREEDY) -> Request:
    return request(name, [*prompt(99, length - 1), POISON], 5, sampling)


def serve(engine: Engine, wanted: Sequence[Request]) -> tuple[Output, list[RequestFailed]]:
    output = run(engine, wanted)
    return output, list(engine.drain_refused())


@pytest.mark.parametrize("max_batch_tokens", [64, 9])
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_one_request_is_refused_and_its_neighbours_get_the_same_tokens(
    max_batch_tokens: int, deterministic: bool
) -> None:
    fine = [request(f"r{i}", prompt(i, 7 + 9 * i), 12, (GREEDY, DRAWN)[i % 2]) for i in range(4)]
    whole = engine_of(
        "llama",
        prefix_caching=False,
        max_batch_tokens=max_batch_tokens,
        deterministic=deterministic,
    )
    sound, _ = serve(whole, fine)
    given, refused = serve(
        broken_engine(max_batch_tokens=max_batch_tokens, deterministic=deterministic),
        [fine[0], poisoned("bad", 13), fine[1], poisoned("worse", 6, DRAWN), *fine[2:]],
    )
    assert sorted((one.request_id, one.kind) for one in refused) == [
        ("bad", "NotFinite"),
        ("worse", "NotFinite"),
    ]
    assert "bad cannot be computed: after 13 tokens" in str(refused)
    for one in fine:
        assert tokens_of(given, one.request_id) == tokens_of(sound, one.request_id)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_pages_that_held_such_numbers_do_not_spoil_who_gets_them_next(dtype: torch.dtype) -> None:
    """float16 has no kernel on a CPU that reads pages in place: all are gathered and masked."""
    engine = broken_engine(num_blocks=FEW_PAGES, max_batch_tokens=16, dtype=dtype)
    assert [one.request_id for one in serve(engine, [poisoned("bad", 55)])[1]] == ["bad"]
    output, refused = serve(engine, [request("r", prompt(1, 37), 9), request("s", prompt(2, 6), 9)])
    assert not refused
    assert (len(tokens_of(output, "r")), len(tokens_of(output, "s"))) == (9, 9)


@pytest.mark.parametrize(("max_batch_tokens", "reused"), [(16, 32), (64, 0)])
def test_a_prefix_that_it_shares_is_not_spoilt(max_batch_tokens: int, reused: int) -> None:
    """Whether the bad token stands in a chunk that samples or in one before it."""
    shared = prompt(1, 40)
    bad = request("bad", [*shared, POISON, *prompt(2, 16)], 5)
    fine = request("fine", [*shared, *prompt(3, 10)], 9)
    alone = run(engine_of("llama", max_batch_tokens=max_batch_tokens), [fine])
    engine = broken_engine(max_batch_tokens=max_batch_tokens, prefix_caching=True)
    assert [one.request_id for one in serve(engine, [bad])[1]] == ["bad"]
    assert len(engine.findable()) == reused // 4
    output, refused = serve(engine, [fine])
    assert not refused
    assert engine.stats().prefix_hit_tokens == reused
    assert tokens_of(output, "fine") == tokens_of(alone, "fine")


@pytest.mark.parametrize("scored", [None, 0])
def test_a_prompt_that_ends_badly_is_refused_though_no_token_is_wanted(scored: int | None) -> None:
    wanted = poisoned("bad", 9, Sampling(temperature=0.0, prompt_logprobs=scored))
    wanted = replace(wanted, stopping=Stopping(max_tokens=0))
    output, refused = serve(broken_engine(), [wanted])
    assert [one.request_id for one in refused] == ["bad"]
    assert not output


def test_a_prompt_whose_scores_are_no_numbers_is_refused() -> None:
    scored = Sampling(temperature=0.0, prompt_logprobs=0)
    wanted = [poisoned("bad", 9, scored), request("r", prompt(1, 9), 3, scored)]
    output, refused = serve(broken_engine(), wanted)
    assert [one.request_id for one in refused] == ["bad"]
    assert {name for name, _ in output} == {"r"}


def test_a_request_that_bans_all_tokens_is_told_so_and_nobody_else() -> None:
    banned = request("r", prompt(1, 5), 9, GREEDY, stop_token_ids=tuple(range(VOCAB)), min_tokens=2)
    drawn = request("s", prompt(1, 5), 9, DRAWN, stop_token_ids=tuple(range(VOCAB)), min_tokens=2)
    output, refused = serve(engine_of("llama"), [banned, drawn, request("t", prompt(2, 5), 4)])
    assert [(one.request_id, one.kind) for one in refused] == [
        ("r", "InvalidRequest"),
        ("s", "InvalidRequest"),
    ]
    assert len(tokens_of(output, "t")) == 4


def test_a_shard_that_computes_nothing_of_use_fails() -> None:
    engine = broken_engine()
    engine.admit(assignment(poisoned("a", 9)))
    engine.admit(assignment(poisoned("b", 7)))
    with pytest.raises(DeviceFault):
        engine.step()
    assert engine.computing() == ("a", "b")


def test_the_door_of_a_refused_request_is_told() -> None:
    outcomes: SimpleQueue[Outcome] = SimpleQueue()
    thread = EngineThread(broken_engine, outcomes.put, lambda crash: pytest.fail(str(crash)))
    thread.start()
    thread.admit(assignment(poisoned("bad", 9)))
    outcome = outcomes.get(timeout=60)
    while not outcome.deltas:
        outcome = outcomes.get(timeout=60)
    (failed,) = outcome.deltas
    assert isinstance(failed, RequestFailed)
    assert (failed.request_id, failed.kind) == ("bad", "NotFinite")
    assert outcome.progress.ended == ("bad",)


def flaws_of(
    rows: list[int], guesses: tuple[int, ...], largest: float = math.nan
) -> ShoalError | None:
    known = Known(request("r", [5, 6]), 0, [5, 6])
    chunk = Chunk(known, 1, 1, samples=True, guesses=guesses)
    sampled = (tuple(TokenLogprob(token, 0.0) for token in rows),)
    logits = torch.full((len(rows), 4), largest)
    return dict(unsampled(logits, {7: chunk}, sampled)).get(7)


def test_a_flaw_behind_a_wrong_guess_does_not_matter() -> None:
    assert flaws_of([8, NO_TOKEN], guesses=(7,)) is None


def test_a_flaw_behind_a_right_guess_does() -> None:
    assert isinstance(flaws_of([7, NO_TOKEN], guesses=(7,)), NotFinite)


def test_finite_logits_that_give_no_token_are_the_request_s_doing() -> None:
    assert isinstance(flaws_of([NO_TOKEN], guesses=(), largest=1.0), InvalidRequest)
