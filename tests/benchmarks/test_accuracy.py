"""Perplexity is of the tokens that came, agreement of those that would have been chosen."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.accuracy import Prediction, predict, rows, score
from tests.engine.families import logits, reference

TOKENS = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])


def prediction(surprise: list[float], likeliest: list[int]) -> Prediction:
    return Prediction(torch.tensor(surprise), torch.tensor(likeliest))


def test_the_perplexity_of_knowing_nothing_is_the_vocabulary() -> None:
    assert score(torch.zeros(8, 50), TOKENS).perplexity == pytest.approx(50)


def test_agreement_is_the_share_of_positions_with_the_same_likeliest_token() -> None:
    left, right = prediction([1, 1, 1, 1], [7, 8, 9, 7]), prediction([1, 1, 1, 1], [7, 8, 7, 9])
    assert left.agreement(left) == 1
    assert left.agreement(right) == 0.5


def test_a_cost_is_the_ratio_of_perplexities_and_its_error_that_of_their_difference() -> None:
    left, right = prediction([2.0, 4.0], [0, 0]), prediction([1.5, 3.0], [0, 0])
    more, error = left.cost(right)
    assert more == pytest.approx(left.perplexity / right.perplexity - 1)
    assert error == pytest.approx(math.sqrt(0.125) / math.sqrt(2))
    assert left.cost(left) == (0, 0)


def test_each_token_of_a_window_but_the_first_is_predicted_from_those_before() -> None:
    model = reference("llama")
    whole = predict(model, [TOKENS, TOKENS[:3]])
    expected = score(logits("llama", TOKENS.tolist())[:-1], TOKENS[1:])
    assert len(whole.surprise) == 7 + 2
    assert torch.equal(whole.likeliest[:7], expected.likeliest)
    assert torch.allclose(whole.surprise[:7], expected.surprise)


def test_a_precision_has_a_row_beside_the_first() -> None:
    exact, rough = prediction([1, 1], [7, 7]), prediction([1.5, 1], [8, 9])
    table = list(rows({"exact": exact, "rough": rough}))
    assert [row[0] for row in table] == ["", "---", "exact", "rough"]
    assert table[2][3] == "100.00%"
    assert table[3][3] == "0.00%"
