"""A model that may sleep: when it does, what wakes it, with how many shards, and that it stays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.autoscaling import Autoscaler
from cluster.autoscaling_config import AutoscalingConfig
from cluster.stats import ModelStats
from cluster.waking import to_begin_with

IDLE_S = 40
CONFIG = AutoscalingConfig(min_shards=0, max_shards=8, down_after_s=10.0, idle_s=IDLE_S)
PLACES = 16


@dataclass
class Paper:
    """A model on paper: a request takes a second of the first shard that is there."""

    shards: int = 1
    startup_s: int = 5
    now: int = 0
    queued: int = 0
    granted: int = 0
    serving: int = 0
    up: int = 0
    wanted: list[tuple[int, int]] = field(default_factory=list)
    scaler: Autoscaler = field(init=False)

    def __post_init__(self) -> None:
        self.scaler = Autoscaler(CONFIG, self.shards, PLACES)
        self.serving = self.shards

    def second(self, requests: int = 0) -> None:
        """A look, and so many requests that came since the one before."""
        self.now += 1
        self.queued += requests
        running = self.queued if self.serving else 0
        self.granted += running
        self.queued -= running
        stats = ModelStats(self.serving, self.queued, running, self.granted)
        wanted = self.scaler.look(stats, float(self.now))
        if wanted is not None:
            self.wanted.append((self.now, wanted.shards))
        self._follow()

    def _follow(self) -> None:
        if self.scaler.wanted <= self.serving:
            self.serving, self.up = self.scaler.wanted, 0
        else:
            self.up += 1
            if self.up >= self.startup_s:
                self.serving, self.up = self.scaler.wanted, 0

    def run(self, seconds: int, asked_at: Iterable[int] = ()) -> None:
        asked = set(asked_at)
        for _ in range(seconds):
            self.second(int(self.now + 1 in asked))


def test_a_model_that_nobody_asks_for_sleeps_after_that_time() -> None:
    paper = Paper()
    paper.run(200)

    assert paper.wanted == [(1 + IDLE_S, 0)]


def test_where_one_shard_has_to_stay_nothing_sleeps() -> None:
    scaler = Autoscaler(CONFIG.model_copy(update={"min_shards": 1}), 1, PLACES)
    for second in range(10 * IDLE_S):
        assert scaler.look(ModelStats(shards=1), float(second)) is None


def test_more_than_one_shard_goes_to_one_before_it_sleeps() -> None:
    paper = Paper(shards=3)
    paper.run(200)

    assert [shards for _, shards in paper.wanted] == [1, 0]


def test_a_model_that_begins_without_a_shard_sleeps_on() -> None:
    paper = Paper(shards=0)
    paper.granted = 1000  # as the scheduler has counted before this owner came
    paper.run(200)

    assert paper.wanted == []


def test_one_request_wakes_it_at_once() -> None:
    paper = Paper(shards=0)
    paper.run(100)
    paper.second(requests=1)

    assert paper.wanted == [(101, 1)]


def test_a_request_that_could_not_wait_wakes_it_too() -> None:
    scaler = Autoscaler(CONFIG, 0, PLACES)
    scaler.look(ModelStats(), 0.0)

    assert scaler.look(ModelStats(asked_in_vain=1), 1.0) is not None
    assert scaler.wanted == 1


def test_a_shard_that_was_woken_stays_although_nobody_could_wait_for_it() -> None:
    scaler = Autoscaler(CONFIG, 0, PLACES)
    scaler.look(ModelStats(), 0.0)
    scaler.look(ModelStats(asked_in_vain=1), 1.0)
    served_at = IDLE_S  # late, but it comes
    for second in range(2, served_at + IDLE_S):
        look = ModelStats(shards=int(second >= served_at), asked_in_vain=1)
        assert scaler.look(look, float(second)) is None

    assert scaler.look(ModelStats(shards=1, asked_in_vain=1), served_at + IDLE_S) is not None


def test_one_that_never_comes_is_given_up_once_nobody_asks() -> None:
    scaler = Autoscaler(CONFIG, 0, PLACES)
    scaler.look(ModelStats(queued=1), 0.0)
    for second in range(1, 3 * IDLE_S):
        assert scaler.look(ModelStats(queued=1), float(second)) is None
    for second in range(3 * IDLE_S, 4 * IDLE_S + 1):
        scaler.look(ModelStats(), float(second))

    assert scaler.wanted == 0


def test_a_scheduler_that_begins_anew_wakes_nobody() -> None:
    scaler = Autoscaler(CONFIG, 0, PLACES)
    scaler.look(ModelStats(granted=1000, asked_in_vain=5), 0.0)

    assert scaler.look(ModelStats(), 1.0) is None


def test_what_a_new_scheduler_was_asked_for_counts_from_its_beginning() -> None:
    scaler = Autoscaler(CONFIG, 1, PLACES)
    scaler.look(ModelStats(shards=1, granted=1000), 0.0)
    scaler.look(ModelStats(shards=1, granted=2), float(IDLE_S - 1))

    assert scaler.look(ModelStats(shards=1, granted=2), float(IDLE_S)) is None


@pytest.mark.parametrize(
    ("queued", "shards"),
    [(0, 1), (1, 1), (10, 1), (11, 2), (30, 3), (1000, 4)],  # 10.4 to a shard, growth is 4
)
def test_it_wakes_with_as_many_shards_as_have_places_for_those_who_wait(
    queued: int, shards: int
) -> None:
    assert to_begin_with(queued, PLACES, CONFIG) == shards


def test_more_are_begun_while_the_first_is_on_its_way_and_never_more_than_may_be() -> None:
    few = CONFIG.model_copy(update={"max_shards": 2})
    scaler = Autoscaler(few, 0, PLACES)
    wanted = []
    for second, queued in enumerate((0, 1, 15, 1000)):
        scaler.look(ModelStats(queued=queued), float(second))
        wanted.append(scaler.wanted)

    assert wanted == [0, 1, 2, 2]


@settings(max_examples=60)
@given(st.lists(st.integers(1, 300), max_size=12), st.integers(0, 20), st.integers(0, 1))
def test_it_sleeps_only_after_nobody_asked_for_that_time_and_wakes_in_the_second_one_does(
    asked_at: list[int], startup_s: int, first: int
) -> None:
    paper = Paper(shards=first, startup_s=startup_s)
    paper.run(500, asked_at)

    for at, shards in paper.wanted:
        if not shards:
            assert not [one for one in asked_at if at - IDLE_S < one <= at]
        else:
            assert at in asked_at
    assert paper.scaler.wanted == 0
    assert paper.queued == 0


@settings(max_examples=30)
@given(st.integers(1, IDLE_S - 1), st.integers(0, 20), st.integers(0, 1))
def test_a_trickle_keeps_it_awake(every_s: int, startup_s: int, first: int) -> None:
    paper = Paper(shards=first, startup_s=startup_s)
    paper.run(600, range(1, 600, every_s))

    assert 0 not in [shards for _, shards in paper.wanted]
    assert (1, 1) in paper.wanted or first
