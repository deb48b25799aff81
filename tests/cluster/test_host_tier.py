"""Host memory behind the pool: what is kept, what comes back, and in which order it is moved."""

from __future__ import annotations

import pytest

from cluster.blocks import BlockPool, page_hash, root_hash
from cluster.errors import LedgerBroken
from cluster.findable import PageEvents
from cluster.host_tier import HostTier
from cluster.steps import PageLoad, PageSave

A, B, C, D = (page_hash(root_hash(b""), [number]) for number in range(4))
NONE = PageEvents((), ())


def pool_of(pages: int, slots: int) -> BlockPool:
    return BlockPool(pages, 4, prefix_caching=True, host=HostTier(slots))


def cached(pool: BlockPool, *contents: bytes) -> None:
    """Pages sealed as `contents` and released, the first one first, and all moves done."""
    for content in contents:
        pages = pool.allocate(1) or []
        pool.drain_moves()
        pool.seal(pages[0], content)
        pool.release(pages)


def test_a_cached_page_that_is_reused_is_saved_first() -> None:
    pool = pool_of(1, slots=1)
    cached(pool, A)
    assert pool.allocate(1) == [0]
    assert pool.drain_moves() == ((PageSave(page=0, slot=0),), ())
    pool.verify([[0]])


def test_a_page_without_a_hash_is_not_saved() -> None:
    pool = pool_of(1, slots=1)
    pool.release(pool.allocate(1) or [])
    pool.allocate(1)
    assert pool.drain_moves() == ((), ())


def test_what_was_saved_comes_back_to_a_fresh_page_and_is_found_there() -> None:
    pool = pool_of(2, slots=2)
    cached(pool, A, B)
    pool.release(pool.allocate(2) or [])
    pool.drain_moves()
    assert pool.reach([A, B, C]) == 2
    pages = pool.open([A, B])
    assert pool.drain_moves()[1] == (PageLoad(0, pages[0]), PageLoad(1, pages[1]))
    assert pool.match([A, B]) == pages
    pool.verify([pages])


def test_a_prefix_may_lie_partly_here_and_partly_there() -> None:
    pool = pool_of(3, slots=3)
    cached(pool, A, B)
    pool.open([B])
    pool.allocate(2)
    pool.drain_moves()
    assert (pool.reach([A, B]), pool.held([A, B])) == (2, 1)
    assert pool.match([A, B]) == []


def test_what_came_back_is_not_saved_a_second_time() -> None:
    pool = pool_of(1, slots=1)
    cached(pool, A)
    pool.release(pool.allocate(1) or [])
    pool.release(pool.open([A]))
    pool.drain_moves()
    pool.allocate(1)
    assert pool.drain_moves() == ((), ())
    assert pool.reach([A]) == 1
    assert (pool.stats().saved, pool.stats().loaded, pool.stats().host) == (1, 1, 1)


def test_what_is_saved_in_a_step_may_be_loaded_in_it() -> None:
    pool = pool_of(2, slots=2)
    cached(pool, A, B)
    first = pool.allocate(1) or []
    assert pool.open([A]) == [1]
    saves, loads = pool.drain_moves()
    assert saves == (PageSave(first[0], 0), PageSave(1, 1))
    assert loads == (PageLoad(0, 1),)


def test_a_slot_that_will_be_read_is_given_to_nobody() -> None:
    pool = pool_of(2, slots=1)
    cached(pool, A)
    pool.release(pool.allocate(2) or [])
    cached(pool, B)
    pool.allocate(1)
    pool.drain_moves()
    pages = pool.open([A])
    assert pool.drain_moves() == ((), (PageLoad(0, pages[0]),))
    assert (pool.reach([A]), pool.reach([B])) == (1, 0)


def test_of_two_saves_into_a_slot_in_one_step_the_later_one_counts() -> None:
    pool = pool_of(2, slots=1)
    cached(pool, A, B)
    pool.allocate(2)
    assert pool.drain_moves()[0] == (PageSave(page=1, slot=0),)
    assert (pool.reach([A]), pool.reach([B])) == (0, 1)


def test_a_page_that_is_given_up_before_it_was_loaded_is_neither_loaded_nor_saved() -> None:
    pool = pool_of(1, slots=2)
    cached(pool, A)
    pool.release(pool.allocate(1) or [])
    pool.drain_moves()
    pool.release(pool.open([A]))
    pool.allocate(1)
    assert pool.drain_moves() == ((), ())
    assert pool.reach([A]) == 1


def test_the_least_recently_used_is_forgotten_first() -> None:
    tier = HostTier(2)
    assert (tier.keep(A, 0), tier.keep(B, 1)) == (None, None)
    tier.pin([A])
    tier.drain_moves()
    assert tier.keep(C, 2) == B
    assert tier.keep(A, 3) is None
    assert tier.keep(D, 4) == C


def test_of_a_prefix_that_came_back_the_tail_is_forgotten_first() -> None:
    tier = HostTier(2)
    tier.keep(B, 1)
    tier.keep(A, 0)
    tier.pin([A, B])
    tier.drain_moves()
    assert tier.keep(C, 2) == B


def test_a_hash_is_removed_only_when_neither_tier_has_it() -> None:
    pool = pool_of(1, slots=1)
    cached(pool, A)
    assert pool.drain_events() == PageEvents((A,), ())
    cached(pool, B)
    assert pool.drain_events() == PageEvents((B,), ())
    assert set(pool.findable()) == {A, B}
    cached(pool, C)
    assert pool.drain_events() == PageEvents((C,), (A,))


def test_what_comes_back_or_is_computed_again_is_no_news() -> None:
    pool = pool_of(2, slots=2)
    cached(pool, A)
    pool.release(pool.allocate(2) or [])
    pool.drain_events()
    pool.release(pool.open([A]))
    assert pool.drain_events() == NONE
    pool.release(pool.allocate(2) or [])
    cached(pool, A)
    assert pool.drain_events() == NONE


def test_without_slots_what_is_reused_is_forgotten() -> None:
    pool = pool_of(1, slots=0)
    cached(pool, A)
    pool.allocate(1)
    assert pool.drain_moves() == ((), ())
    assert pool.drain_events() == NONE
    assert pool.findable() == ()


def test_what_is_in_neither_tier_cannot_be_opened() -> None:
    pool = pool_of(1, slots=1)
    with pytest.raises(LedgerBroken, match="is not kept"):
        pool.open([A])


def test_a_prefix_that_has_no_room_cannot_be_opened() -> None:
    pool = pool_of(1, slots=1)
    cached(pool, A)
    pool.allocate(1)
    with pytest.raises(LedgerBroken, match="1 pages to load, 0 are there"):
        pool.open([A])


def test_only_what_is_pinned_is_loaded() -> None:
    tier = HostTier(1)
    tier.keep(A, 0)
    with pytest.raises(LedgerBroken, match="without being pinned"):
        tier.load(A, 0)
