"""The setting of the process that is the brain's own."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from cluster.garbage import ALLOCATIONS, collect_seldom


@pytest.fixture
def _as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("_as_before")
def test_garbage_is_looked_for_seldom_and_never_among_what_was_there_before() -> None:
    _, middle, oldest = gc.get_threshold()
    collect_seldom()
    assert gc.get_threshold() == (ALLOCATIONS, middle, oldest)
    assert gc.get_freeze_count() > 0
    assert gc.isenabled()
