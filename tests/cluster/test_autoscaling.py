"""How many shards are wanted: what makes more, what makes fewer, and what never happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.autoscaling import FEW, FORGET, Autoscaler
from cluster.autoscaling_config import AutoscalingConfig
from cluster.stats import ModelStats, Percentiles

CONFIG = AutoscalingConfig(max_shards=16, settle_s=10.0, down_after_s=60.0)
PLACES = 64


def late(share: float, count: int = FEW) -> Percentiles:
    return Percentiles(count, share / 2, share, share)


def stats(shards: int, **changes: Any) -> ModelStats:
    """A model with enough requests in hand that more shards could have work."""
    return ModelStats(**({"shards": shards, "running": 64 * shards, "granted": 1000} | changes))


@dataclass
class Paper:
    """A cluster of as many shards as are wanted, `startup_s` after, with a load worth `work` of
    them; requests are late from the utilization `knee` on."""

    scaler: Autoscaler
    work: float = 0.0
    knee: float = 2.0
    startup_s: int = 0
    now: float = 0.0
    queued: int = 0
    granted: int = 0
    serving: int = 1
    wanted: list[tuple[float, int]] = field(default_factory=list)
    coming: list[tuple[float, int]] = field(default_factory=list)

    def run(self, seconds: int) -> None:
        """A look a second; a shard's worth of work is ten requests a second."""
        for _ in range(seconds):
            self.now += 1.0
            due = [shards for at, shards in self.coming if at <= self.now]
            self.serving = due[-1] if due else self.serving
            self.coming = [(at, shards) for at, shards in self.coming if at > self.now]
            wanted = self.scaler.look(self._seen(), self.now)
            if wanted is not None:
                self.wanted.append((self.now, wanted.shards))
                if wanted.shards < self.serving:
                    self.serving, self.coming = wanted.shards, []
                else:
                    self.coming.append((self.now + self.startup_s, wanted.shards))

    def _seen(self) -> ModelStats:
        arrivals, most = round(10 * self.work), 10 * self.serving
        served = min(arrivals + self.queued, most)
        self.queued += arrivals - served
        self.granted += served
        utilization = served / most if most else 0.0
        return ModelStats(
            shards=self.serving,
            queued=self.queued,
            running=round(6.4 * served),
            granted=self.granted,
            utilization=utilization,
            delay=late(2.0 if utilization >= self.knee else 0.3) if served else Percentiles(),
        )


def test_a_full_shard_with_a_growing_queue_gets_as_many_beside_it_as_the_load_needs() -> None:
    paper = Paper(Autoscaler(CONFIG, 1, PLACES), work=2.4, startup_s=20)
    paper.run(19)

    assert paper.scaler.wanted == 4  # 2.4 / 0.65, rounded up


def test_a_backlog_that_is_being_worked_off_asks_for_no_more() -> None:
    paper = Paper(Autoscaler(CONFIG, 1, PLACES), work=2.4, startup_s=60)
    paper.run(400)

    assert max(shards for _, shards in paper.wanted) <= 5


def test_no_step_is_larger_than_growth_allows() -> None:
    paper = Paper(Autoscaler(CONFIG, 1, PLACES), work=16.0, startup_s=1000)
    paper.run(30)

    assert paper.scaler.wanted == 4


def test_late_requests_get_half_as_many_shards_again_until_what_is_new_has_settled() -> None:
    scaler = Autoscaler(CONFIG, 4, PLACES)
    scaler.look(stats(4, utilization=0.3), 0.0)
    wanted = scaler.look(stats(4, utilization=0.3, delay=late(1.5)), 20.0)
    assert wanted is not None
    assert wanted.shards == 6

    assert scaler.look(stats(6, utilization=0.3, delay=late(1.5)), 25.0) is None
    assert scaler.look(stats(6, utilization=0.3, delay=late(1.5)), 34.0) is None
    assert scaler.look(stats(6, utilization=0.3, delay=late(1.5)), 35.0) is not None


def test_slow_further_tokens_get_more_shards_too() -> None:
    scaler = Autoscaler(CONFIG, 4, PLACES)
    scaler.look(stats(4, utilization=0.3), 0.0)
    wanted = scaler.look(stats(4, utilization=0.3, tpot=late(1.2)), 20.0)

    assert wanted is not None
    assert "further tokens 120%" in wanted.why


def test_the_p95_of_a_handful_of_requests_changes_nothing() -> None:
    scaler = Autoscaler(CONFIG, 4, PLACES)
    scaler.look(stats(4, utilization=0.3), 0.0)

    assert scaler.look(stats(4, utilization=0.3, delay=late(9.0, FEW - 1)), 20.0) is None


def test_a_lone_late_request_gets_no_second_shard() -> None:
    scaler = Autoscaler(CONFIG, 1, PLACES)
    scaler.look(stats(1, running=0), 0.0)

    assert scaler.look(stats(1, running=1, delay=late(9.0)), 20.0) is None


def test_shards_go_only_after_fewer_would_have_done_for_a_whole_period() -> None:
    paper = Paper(Autoscaler(CONFIG, 8, PLACES), work=0.5, serving=8)
    paper.run(60)
    assert paper.wanted == []

    paper.run(210)
    assert [shards for _, shards in paper.wanted] == [6, 5, 4, 3]
    assert all(b - a >= 60 for (a, _), (b, _) in zip(paper.wanted, paper.wanted[1:], strict=False))


def test_a_burst_begins_the_period_anew() -> None:
    paper = Paper(Autoscaler(CONFIG, 2, PLACES), work=0.5, serving=2)
    paper.run(50)
    paper.work = 1.3
    paper.run(5)
    paper.work = 0.5
    paper.run(60)

    assert paper.wanted == []


def test_shards_stay_where_one_fewer_would_miss_the_target() -> None:
    scaler = Autoscaler(CONFIG, 3, PLACES)
    for second in range(300):
        # 0.45 on two shards would be 0.68, and a wait of half the target would be one and a third.
        assert scaler.look(stats(3, utilization=0.45, delay=late(0.5)), float(second)) is None


def test_what_was_too_few_is_not_tried_again_soon() -> None:
    paper = Paper(Autoscaler(CONFIG, 1, PLACES), work=0.5, knee=0.4)
    paper.run(200)

    assert [shards for _, shards in paper.wanted] == [2]


def test_a_shard_that_never_comes_is_given_up_when_it_is_not_needed_any_more() -> None:
    scaler = Autoscaler(CONFIG, 4, PLACES)
    for second in range(130):
        scaler.look(stats(2, utilization=0.1), float(second))

    assert scaler.wanted < 4


def test_shards_lost_under_load_are_not_given_up() -> None:
    scaler = Autoscaler(CONFIG, 4, PLACES)
    for second in range(130):
        scaler.look(stats(2, utilization=1.0), float(second))

    assert scaler.wanted >= 4


LOOKS = st.lists(
    st.builds(
        ModelStats,
        shards=st.integers(0, 40),
        queued=st.integers(0, 5000),
        running=st.integers(0, 5000),
        granted=st.integers(0, 10**6),
        asked_in_vain=st.integers(0, 10**6),
        utilization=st.floats(0, 1),
        delay=st.builds(late, st.floats(0, 100), st.integers(1, 50)),
        tpot=st.builds(late, st.floats(0, 100), st.integers(1, 50)),
    ),
    max_size=60,
)


@given(LOOKS, st.integers(0, 5), st.integers(0, 20), st.floats(0, 40), st.integers(0, 50))
def test_the_number_never_leaves_its_bounds(
    looks: list[ModelStats], fewest: int, more: int, down_after_s: float, first: int
) -> None:
    most = max(fewest + more, 1)
    scaler = Autoscaler(
        AutoscalingConfig(min_shards=fewest, max_shards=most, down_after_s=down_after_s),
        first,
        PLACES,
    )
    for second, look in enumerate(looks):
        before = scaler.wanted
        wanted = scaler.look(look, float(second))
        assert fewest <= scaler.wanted <= most
        assert (wanted is None) == (scaler.wanted == before)


@settings(max_examples=40)
@given(st.floats(0.1, 8), st.floats(0.05, 1), st.integers(0, 40), st.integers(1, 16))
def test_under_a_constant_load_the_number_comes_to_rest(
    work: float, knee: float, startup_s: int, first: int
) -> None:
    """Wherever its shards become late: at worst, fewer are tried once in `FORGET` periods."""
    paper = Paper(Autoscaler(CONFIG, first, PLACES), work, knee, startup_s, serving=first)
    paper.run(1200)
    settled = len(paper.wanted)
    paper.run(1200)

    assert len(paper.wanted) - settled <= 2 * 1200 / ((FORGET + 1) * CONFIG.down_after_s)


@given(st.floats(0.2, 0.6), st.floats(1.5, 9.0), st.integers(0, 60))
def test_a_step_of_the_load_is_answered_within_half_a_minute(
    before: float, after: float, startup_s: int
) -> None:
    paper = Paper(Autoscaler(CONFIG, 1, PLACES), before, startup_s=startup_s)
    paper.run(120)
    at = len(paper.wanted)
    paper.work = after
    paper.run(30)

    assert paper.wanted[at:]
    assert paper.scaler.wanted >= min(after, 4.0)


@pytest.mark.parametrize("startup_s", [0, 30, 120])
def test_in_the_end_there_is_enough_for_a_load_and_not_much_more(startup_s: int) -> None:
    paper = Paper(Autoscaler(CONFIG, 1, PLACES), work=5.0, startup_s=startup_s)
    paper.run(1500)

    assert paper.queued == 0
    assert 7 <= paper.scaler.wanted <= 9  # 5 / 0.65, and a tenth either way


@pytest.mark.parametrize("changing_s", [1, 120])
def test_a_shard_that_is_there_only_while_another_is_replaced_is_not_kept(changing_s: int) -> None:
    scaler = Autoscaler(CONFIG, 2, PLACES)
    busy = 2 * 0.69  # a little above the target, as two may be for good
    for second in range(120 + changing_s):
        shards = 3 if second >= 120 else 2
        scaler.look(stats(shards, utilization=busy / shards), float(second))

    assert scaler.wanted == 2
