"""The figures of a run follow from its times, by the definitions in the README."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.metrics import Timeline, percentile, summarize


def one(sent: float, *arrivals: float, tokens: int | None = None, asked: int = 0) -> Timeline:
    return Timeline(sent, arrivals, len(arrivals) if tokens is None else tokens, asked)


def test_ttft_is_counted_from_the_moment_the_request_was_sent() -> None:
    assert one(10.0, 10.25, 10.5).ttft == pytest.approx(0.25)


def test_tpot_spreads_the_time_after_the_first_token_over_the_other_tokens() -> None:
    assert one(0.0, 1.0, 1.5, 3.0).tpot == pytest.approx(1.0)


def test_tpot_counts_tokens_and_not_chunks_where_the_server_counts() -> None:
    assert one(0.0, 1.0, 3.0, tokens=5).tpot == pytest.approx(0.5)


def test_a_single_token_has_no_tpot() -> None:
    assert one(0.0, 1.0).tpot is None


def test_gaps_are_the_waits_between_chunks() -> None:
    assert list(one(0.0, 1.0, 1.5, 3.0).gaps) == [0.5, 1.5]


def test_throughput_is_what_all_requests_had_over_the_wall_time() -> None:
    figures = summarize([one(0.0, 1.0, 2.0), one(0.5, 1.0, 2.0, 3.0)], wall_s=4.0)
    assert figures.output_tok_s == pytest.approx(5 / 4)
    assert figures.request_s == pytest.approx(2 / 4)
    assert figures.output_tokens == 5


def test_latencies_are_in_milliseconds() -> None:
    figures = summarize([one(0.0, 0.1, 0.3), one(0.0, 0.2, 0.3)], wall_s=1.0)
    assert figures.ttft_mean == pytest.approx(150)
    assert figures.ttft_p50 == pytest.approx(150)
    assert figures.tpot_mean == pytest.approx(150)
    assert figures.itl_p99 == pytest.approx(199)


def test_a_failed_request_counts_as_failed_and_nowhere_else() -> None:
    failed = Timeline(0.0, error="500")
    figures = summarize([failed, one(0.0, 1.0, 2.0)], wall_s=2.0)
    assert (figures.done, figures.failed, figures.output_tokens) == (1, 1, 2)
    assert figures.ttft_p99 == pytest.approx(1000)


def test_a_request_that_ended_early_is_told() -> None:
    figures = summarize([one(0.0, 1.0, asked=1), one(0.0, 1.0, asked=2)], wall_s=1.0)
    assert figures.short == 1


def test_a_run_in_which_all_failed_has_no_latency() -> None:
    figures = summarize([Timeline(0.0, error="refused")], wall_s=1.0)
    assert math.isnan(figures.ttft_mean)
    assert math.isnan(figures.itl_p99)
    assert figures.output_tok_s == 0


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50),
    st.floats(0, 100),
)
def test_percentiles_agree_with_numpy(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(np.percentile(values, percent), abs=1e-6)
