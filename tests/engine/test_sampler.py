"""The next token: filters and penalties as in transformers, draws that depend on keys alone."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from actors.engine.flaws import NO_TOKEN
from actors.engine.penalties import adjust
from actors.engine.sampler import Sampler
from cluster.messages import Sampling, TokenLogprob
from cluster.steps import Sequence
from tests.engine.driving import request

VOCAB = 1000
DRAWS = 4000


def sequence_of(
    sampling: Sampling,
    output: tuple[int, ...] = (),
    *,
    prompt: tuple[int, ...] = (5, 6),
    choice: int = 0,
    **stopping: Any,
) -> Sequence:
    wanted = request("r", prompt, 100, sampling, **stopping)
    return Sequence(wanted, choice, [*prompt, *output])


def some_logits(rows: int = 1, seed: int = 0, spread: float = 2.0) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread


def next_tokens(logits: Tensor, *sequences: Sequence) -> tuple[TokenLogprob, ...]:
    return Sampler().sample(logits, sequences, [sequence.output_len for sequence in sequences])


def sample(logits: Tensor, *sequences: Sequence) -> list[int]:
    return [one.token for one in next_tokens(logits, *sequences)]


def draw_often(logits: Tensor, sampling: Sampling) -> Counter[int]:
    """Tokens drawn with as many different seeds."""
    sequences = [sequence_of(dataclasses.replace(sampling, seed=seed)) for seed in range(DRAWS)]
    return Counter(sample(logits.expand(DRAWS, -1), *sequences))


def test_temperature_zero_takes_the_likeliest() -> None:
    logits = some_logits(3)
    greedy = sequence_of(Sampling(temperature=0.0))
    assert sample(logits, greedy, greedy, greedy) == logits.argmax(-1).tolist()


def test_greedy_and_drawn_rows_share_a_step() -> None:
    logits = some_logits(3)
    greedy, drawn = sequence_of(Sampling(temperature=0.0)), sequence_of(Sampling(seed=7))
    first, second, third = sample(logits, greedy, drawn, greedy)
    assert [first, third] == logits[[0, 2]].argmax(-1).tolist()
    assert second == sample(logits[1:2], drawn)[0]


def test_the_draw_depends_on_seed_position_and_choice_only() -> None:
    logits = some_logits(spread=0.1)
    crowd = [
        sequence_of(Sampling(seed=seed), (9,) * position, choice=choice)
        for seed in (0, 1, 2**63 + 5)
        for position in (0, 1, 2)
        for choice in (0, 1)
    ]
    together = sample(logits.expand(len(crowd), -1), *crowd)
    assert together == [sample(logits, one)[0] for one in crowd]
    assert len(set(together)) > len(crowd) // 2


def test_an_equal_prompt_does_not_matter_to_the_draw() -> None:
    logits = some_logits()
    long = sequence_of(Sampling(seed=3), (8, 8), prompt=(1, 2, 3, 4))
    short = sequence_of(Sampling(seed=3), (7, 7), prompt=(1,))
    assert sample(logits, long) == sample(logits, short)


def test_rounding_does_not_change_the_draw() -> None:
    """Of a thousand draws from a vocabulary of fifty thousand. By the inverse of a cumulative
    distribution it changed dozens."""
    generator = torch.Generator().manual_seed(5)
    drawn = [sequence_of(Sampling(temperature=0.9, seed=seed)) for seed in range(64)]
    for _ in range(16):
        logits = 3 * torch.randn(64, 49_152, generator=generator)
        rounded = logits + 1e-5 * torch.randn(64, 49_152, generator=generator)
        assert sample(logits, *drawn) == sample(rounded, *drawn)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.7),
        Sampling(top_k=5),
        Sampling(top_p=0.6),
        Sampling(min_p=0.1),
        Sampling(temperature=1.5, top_k=40, top_p=0.9, min_p=0.05),
        Sampling(temperature=3.0, top_p=0.99),
    ],
    ids=lambda s: f"T{s.temperature} k{s.top_k} p{s.top_p} m{s.min_p}",
)
def test_draws_follow_the_distribution_that_transformers_would_draw_from(
    sampling: Sampling,
) -> None:
    logits = some_logits()
    warpers = LogitsProcessorList([TemperatureLogitsWarper(sampling.temperature)])
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    expected = warpers(torch.tensor([[5, 6]]), logits).softmax(-1)[0]
    counts = draw_often(logits, sampling)
    drawn = torch.tensor([counts[token] for token in range(VOCAB)]) / DRAWS
    assert all(expected[token] > 0 for token in counts)
    assert float((drawn - expected).abs().max()) < 4 * 0.5 / DRAWS**0.5
    likely = expected > 20 / DRAWS
    assert bool((drawn[likely] > 0).all())


def test_a_nucleus_wider_than_the_first_sort_is_found() -> None:
    flat = torch.linspace(0, 1e-3, VOCAB)[None]
    counts = draw_often(flat, Sampling(top_p=0.9))
    assert min(counts) == pytest.approx(VOCAB * 0.1, abs=2)


def test_tokens_equally_likely_at_the_cut_are_kept_together() -> None:
    logits = torch.full((1, VOCAB), -20.0)
    logits[0, [3, 500, 900]] = 5.0
    assert set(draw_often(logits, Sampling(top_k=2))) == {3, 500, 900}


@pytest.mark.parametrize("top_k", [-1, VOCAB, 10 * VOCAB])
def test_top_k_off_or_beyond_the_vocabulary_cuts_nothing(top_k: int) -> None:
    logits = some_logits()
    wide, none = Sampling(top_p=0.9, top_k=top_k), Sampling(top_p=0.9)
    assert sample(logits, sequence_of(wide)) == sample(logits, sequence_of(none))


def test_a_tiny_top_p_leaves_the_likeliest() -> None:
    logits = some_logits()
    assert set(draw_often(logits, Sampling(top_p=1e-9))) == {int(logits.argmax())}


def test_repetition_penalty_is_that_of_transformers() -> None:
    logits = some_logits()
    sequence = sequence_of(Sampling(repetition_penalty=1.3), (7, 7, 9))
    expected = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([sequence.tokens]), logits)
    assert torch.equal(adjust(logits, [sequence]), expected)


def test_presence_and_frequency_penalties_count_the_output_only() -> None:
    logits = torch.zeros(1, VOCAB)
    sampling = Sampling(presence_penalty=0.5, frequency_penalty=0.25)
    adjusted = adjust(logits, [sequence_of(sampling, (7, 7, 9))])[0]
    assert {i: float(v) for i, v in enumerate(adjusted) if v} == {7: -1.0, 9: -0.75}


def test_logit_bias_is_added() -> None:
    logits = some_logits()
    banned, wanted = int(logits.argmax()), 17
    greedy = Sampling(temperature=0.0, logit_bias=((banned, -100.0), (wanted, 100.0)))
    assert sample(logits, sequence_of(greedy)) == [wanted]


def test_stop_ids_cannot_be_sampled_until_min_tokens_are_out() -> None:
    logits = some_logits()
    stop = int(logits.argmax())
    second = int(logits[0].topk(2).indices[1])
    rules: dict[str, Any] = {"min_tokens": 2, "stop_token_ids": (stop,)}
    greedy = Sampling(temperature=0.0)
    outputs: list[tuple[int, ...]] = [(), (1,), (1, 1)]
    sequences = [sequence_of(greedy, output, **rules) for output in outputs]
    assert sample(logits.expand(3, -1), *sequences) == [second, second, stop]


def test_one_row_s_wishes_do_not_touch_another_s() -> None:
    logits = some_logits(2)
    before = logits.clone()
    biased = sequence_of(Sampling(temperature=0.0, logit_bias=((17, 100.0),)))
    plain = sequence_of(Sampling(temperature=0.0))
    assert sample(logits, biased, plain) == [17, int(logits[1].argmax())]
    assert torch.equal(logits, before)


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = some_logits()
    sampling = Sampling(temperature=0.0, logit_bias=((17, 100.0),), logprobs=3)
    (got,) = next_tokens(logits, sequence_of(sampling))
    raw = logits.log_softmax(-1)[0]
    best = raw.topk(3)
    assert got.token == 17
    assert got.logprob == pytest.approx(float(raw[17]))
    assert [token for token, _ in got.top] == best.indices.tolist()
    assert [value for _, value in got.top] == pytest.approx(best.values.tolist())


def test_rows_get_as_many_alternatives_as_they_ask_for() -> None:
    asked = [sequence_of(Sampling(temperature=0.0, logprobs=n)) for n in (None, 0, 2, 5)]
    got = next_tokens(some_logits(4), *asked)
    assert [len(one.top) for one in got] == [0, 0, 2, 5]
    assert got[0] == TokenLogprob(got[0].token, 0.0)
    assert all(one.logprob < 0 for one in got[1:])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 500, VOCAB - 1])
def test_a_row_with_a_number_that_is_not_finite_gives_no_token_and_others_theirs(
    bad: float, place: int
) -> None:
    logits = some_logits(4)
    logits[1, place] = logits[2, place] = bad
    greedy = sequence_of(Sampling(temperature=0.0, logprobs=2))
    drawn = sequence_of(Sampling(seed=7, top_k=40, top_p=0.9, logprobs=2))
    first, second, third, fourth = next_tokens(logits, greedy, greedy, drawn, drawn)
    assert (second.token, third.token) == (NO_TOKEN, NO_TOKEN)
    assert first == next_tokens(logits[:1], greedy)[0]
    assert fourth == next_tokens(logits[3:], drawn)[0]
    assert first.token == logits[0].argmax()


def test_a_row_of_banned_tokens_gives_none_and_one_that_is_left_is_chosen() -> None:
    logits = torch.full((2, VOCAB), -math.inf)
    logits[1, 9] = -3.0
    for sampling in (Sampling(temperature=0.0), Sampling(seed=1)):
        sequence = sequence_of(sampling)
        assert sample(logits, sequence, sequence) == [NO_TOKEN, 9]
