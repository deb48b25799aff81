"""What is counted as met, how quantiles and fairness are taken, and what the tables say."""

from __future__ import annotations

import math

import pytest

from cluster.messages import RefusalKind, Submission
from cluster.scheduling_config import SlaClass
from cluster.simulate.figures import (
    Target,
    class_figures,
    fairness,
    hit_rate,
    jain,
    quantiles,
    target_of,
)
from cluster.simulate.simulation import Story
from cluster.simulate.table import markdown
from cluster.simulate.workload import MODEL, ROUTER, Offered

TARGETS = {"P0": Target(ttft_s=1.0, tpot_s=0.1)}


def story(tenant: str = "t", ttft_s: float = 0.5, took_s: float = 0.5, cached: int = 0) -> Story:
    """It asks for ten tokens of output, at second 7."""
    submission = Submission("r", ROUTER, MODEL, tenant, "P0", 100, 10, 1, ())
    offered = Offered(7.0, submission, 11)
    first_at = 7.0 + ttft_s
    return Story(offered, first_at, first_at + took_s, cached)


def test_a_request_meets_its_targets_by_its_first_and_by_its_further_tokens() -> None:
    stories = [story(), story(ttft_s=1.5), story(took_s=1.5)]

    assert [TARGETS["P0"].is_met(one) for one in stories] == [True, False, False]


def test_refused_and_unfinished_requests_count_as_offered_and_missed() -> None:
    refused = story()
    refused.first_at = refused.ended_at = math.inf
    refused.refusal = RefusalKind.QUEUE_FULL
    unfinished = story()
    unfinished.ended_at = math.inf
    figures = class_figures([story(), refused, unfinished], TARGETS)

    assert (figures.offered, figures.served, figures.refused, figures.met) == (3, 1, 1, 1)
    assert figures.met_share == pytest.approx(1 / 3)


def test_a_class_without_targets_is_met_whenever_it_is_served() -> None:
    assert target_of(SlaClass(name="batch")).is_met(story(ttft_s=1e6))


def test_an_answer_of_one_token_has_no_time_between_tokens() -> None:
    one = story()
    short = Story(Offered(7.0, one.offered.submission, 1), 8.0, 8.0)

    assert short.tpot_s == 0.0


def test_quantiles_are_values_that_were_measured() -> None:
    assert quantiles(range(1, 101)) == (50, 95, 99)
    assert quantiles([3.0]) == (3.0, 3.0, 3.0)
    assert quantiles([]) == (math.inf,) * 3


def test_jains_index_runs_from_one_to_one_over_n() -> None:
    assert jain([0.7, 0.7, 0.7]) == pytest.approx(1.0)
    assert jain([0.7, 0.0, 0.0, 0.0]) == pytest.approx(0.25)


def test_fairness_compares_tenants_by_the_share_that_met_its_targets() -> None:
    equal = [story("a"), story("b"), story("b")]
    unequal = [story("a"), story("b", ttft_s=9.0)]

    assert fairness(equal, TARGETS) == pytest.approx(1.0)
    assert fairness(unequal, TARGETS) == pytest.approx(0.5)


def test_the_hit_rate_is_by_tokens() -> None:
    assert hit_rate([story(cached=50), story(cached=0)]) == pytest.approx(0.25)


def test_a_table_is_as_wide_as_its_cells() -> None:
    assert markdown(("a", "b"), [("long", "x")]) == (
        "| a    | b |\n"  #
        "| -----|-- |\n"
        "| long | x |\n"
    )
