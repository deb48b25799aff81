"""The page ledger, one behaviour at a time."""

from __future__ import annotations

import struct
from hashlib import blake2b

import pytest

from cluster.blocks import BlockPool, page_hash, page_hashes, root_hash
from cluster.errors import LedgerBroken
from cluster.findable import PageEvents

A, B, C = (page_hash(root_hash(b""), [number]) for number in range(3))


def pool_of(pages: int, prefix_caching: bool = True) -> BlockPool:
    return BlockPool(pages, 4, prefix_caching)


def held(pool: BlockPool, count: int) -> list[int]:
    pages = pool.allocate(count)
    assert pages is not None
    return pages


def cached(pool: BlockPool, *hashes: bytes) -> list[int]:
    """Pages sealed as `hashes` and released together."""
    pages = held(pool, len(hashes))
    for page, content in zip(pages, hashes, strict=True):
        pool.seal(page, content)
    pool.release(pages)
    return pages


def test_a_page_hash_is_blake2b_of_its_parent_and_little_endian_tokens() -> None:
    parent = blake2b(b"salt", digest_size=16).digest()
    content = struct.pack("<2I", 1, 70_000)
    assert page_hashes([1, 70_000], 2, b"salt") == (
        blake2b(parent + content, digest_size=16).digest(),
    )


def test_only_full_pages_have_a_hash() -> None:
    assert [len(page_hashes(range(n), 4, b"")) for n in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_a_hash_depends_on_every_token_before_it_and_on_nothing_after() -> None:
    first, second = page_hashes([1, 2, 3, 4], 2, b"")
    assert page_hashes([9, 2, 3, 4], 2, b"")[1] != second
    assert page_hashes([1, 2, 3, 9], 2, b"")[0] == first


def test_salts_share_no_hash() -> None:
    assert not set(page_hashes(range(8), 2, b"x")) & set(page_hashes(range(8), 2, b"y"))


def test_allocation_is_all_or_nothing() -> None:
    pool = pool_of(3)
    held(pool, 2)
    assert pool.allocate(2) is None
    assert pool.available == 1


def test_pages_without_a_hash_are_free_once_released() -> None:
    pool = pool_of(3)
    pool.release(held(pool, 2))
    assert (pool.stats().used, pool.stats().cached, pool.stats().free) == (0, 0, 3)


def test_sealed_pages_stay_cached_once_released_and_count_as_available() -> None:
    pool = pool_of(3)
    cached(pool, A, B)
    assert (pool.stats().used, pool.stats().cached, pool.stats().free) == (0, 2, 1)
    assert pool.available == 3


def test_a_match_ends_at_the_first_unknown_hash() -> None:
    pool = pool_of(4)
    pages = cached(pool, A, B)
    assert pool.match([A, B, C]) == pages
    assert pool.match([A, C, B]) == pages[:1]
    assert pool.match([C, A]) == []


def test_a_match_takes_nothing_and_a_take_does() -> None:
    pool = pool_of(2)
    pages = cached(pool, A)
    assert (pool.match([A]), pool.used, pool.held([A])) == (pages, 0, 0)
    pool.take(pages)
    assert (pool.used, pool.held([A])) == (1, 1)


def test_free_pages_go_before_cached_ones() -> None:
    pool = pool_of(3)
    cached(pool, A)
    held(pool, 2)
    assert pool.match([A])


def test_the_least_recently_released_page_is_evicted_first() -> None:
    pool = pool_of(2)
    cached(pool, A)
    cached(pool, B)
    held(pool, 1)
    assert not pool.match([A])
    assert pool.match([B])


def test_reuse_makes_a_page_recent_again() -> None:
    pool = pool_of(2)
    pages = cached(pool, A)
    cached(pool, B)
    pool.take(pages)
    pool.release(pages)
    held(pool, 1)
    assert pool.match([A])


def test_the_tail_of_a_table_is_evicted_before_its_head() -> None:
    pool = pool_of(3)
    pages = cached(pool, A, B, C)
    held(pool, 2)
    assert pool.match([A, B, C]) == pages[:1]


def test_a_held_page_is_never_evicted() -> None:
    pool = pool_of(2)
    pages = cached(pool, A)
    pool.take(pages)
    assert pool.allocate(2) is None
    assert pool.match([A]) == pages


def test_a_shared_page_is_used_until_its_last_holder_lets_go() -> None:
    pool = pool_of(1)
    pages = held(pool, 1)
    pool.take(pages)
    pool.release(pages)
    assert pool.stats().used == 1
    pool.release(pages)
    assert pool.stats().free == 1


def test_a_duplicate_hash_stays_with_the_first_page() -> None:
    pool = pool_of(2)
    first, second = held(pool, 2)
    pool.seal(first, A)
    pool.seal(second, A)
    assert pool.match([A]) == [first]
    pool.release([second])
    assert pool.stats().free == 1


def test_a_page_that_others_hold_or_could_find_needs_a_copy() -> None:
    pool = pool_of(3)
    private, shared, sealed = held(pool, 3)
    pool.take([shared])
    pool.seal(sealed, A)
    assert [pool.needs_copy(page) for page in (private, shared, sealed)] == [False, True, True]


def test_without_prefix_caching_nothing_is_findable() -> None:
    pool = pool_of(1, prefix_caching=False)
    cached(pool, A)
    assert not pool.match([A])
    assert pool.stats().free == 1
    assert pool.drain_events() == PageEvents((), ())


def test_events_tell_what_was_stored_and_removed() -> None:
    pool = pool_of(1)
    cached(pool, A)
    assert pool.drain_events() == PageEvents((A,), ())
    held(pool, 1)
    assert pool.drain_events() == PageEvents((), (A,))
    assert pool.drain_events() == PageEvents((), ())


def test_a_page_stored_and_removed_between_drains_is_no_event() -> None:
    pool = pool_of(1)
    cached(pool, A)
    held(pool, 1)
    assert pool.drain_events() == PageEvents((), ())


def test_a_page_evicted_and_stored_again_between_drains_is_no_event() -> None:
    pool = pool_of(1)
    cached(pool, A)
    pool.drain_events()
    (page,) = held(pool, 1)
    pool.seal(page, A)
    assert pool.drain_events() == PageEvents((), ())
    assert pool.findable() == (A,)


def test_a_double_release_is_refused_and_changes_nothing() -> None:
    pool = pool_of(2)
    kept, gone = held(pool, 2)
    pool.release([gone])
    with pytest.raises(LedgerBroken, match="released"):
        pool.release([kept, gone])
    pool.verify([[kept]])


def test_taking_a_free_page_is_refused_and_changes_nothing() -> None:
    pool = pool_of(2)
    (kept,) = held(pool, 1)
    with pytest.raises(LedgerBroken, match="taken while free"):
        pool.take([kept, 1 - kept])
    pool.verify([[kept]])


def test_sealing_a_page_as_something_else_is_refused() -> None:
    pool = pool_of(1)
    (page,) = held(pool, 1)
    pool.seal(page, A)
    with pytest.raises(LedgerBroken, match="cannot be sealed"):
        pool.seal(page, B)


def test_verify_notices_a_table_whose_pages_are_not_counted() -> None:
    pool = pool_of(2)
    (page,) = held(pool, 1)
    pool.verify([[page]])
    with pytest.raises(LedgerBroken, match="references"):
        pool.verify([[page], [page]])
