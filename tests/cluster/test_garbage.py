"""The setting of processes that answer requests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from cluster.garbage import BRAIN, MIDDLE_LOOKS, collect_seldom


@pytest.fixture
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("_as_before")
def test_garbage_is_looked_for_seldom_and_never_among_what_was_there_before() -> None:
    _, middle, _ = gc.get_threshold()
    collect_seldom(BRAIN)
    assert gc.get_threshold() == (BRAIN, middle, MIDDLE_LOOKS)
    assert gc.get_freeze_count() > 0
    assert gc.isenabled()


@pytest.mark.usefixtures("_as_before")
def test_the_young_are_looked_through_as_often_as_before_where_nothing_else_is_said() -> None:
    youngest, *_ = gc.get_threshold()
    collect_seldom()
    assert gc.get_threshold()[0] == youngest


@pytest.mark.usefixtures("_as_before")
def test_open_requests_do_not_have_all_objects_looked_through() -> None:
    """As many objects as a thousand requests hold, kept while they are made: by default the old
    ones are looked through several times meanwhile."""
    collect_seldom()
    before = gc.get_stats()[2]["collections"]
    kept = [[n] for n in range(400_000)]
    assert gc.get_stats()[2]["collections"] == before
    assert len(kept) == 400_000
