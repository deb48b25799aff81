"""A slice has one shard by the book, whatever shards say that they have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actors.slice_book import Shard, Site, SliceBook, site_of
from cluster.placement import Kind, Placement, Rank

A, B, C = (("a", 0), ("b", 0), ("c", 0))
FIRST, SECOND = Site("node", ("MIG-1",)), Site("node", ("MIG-2",))


@pytest.fixture
def book() -> Iterator[SliceBook]:
    book = SliceBook()
    yield book
    book.verify()


def give(book: SliceBook, shard: Shard, site: Site) -> None:
    ranks = tuple(Rank(device, None) for device in site.devices)
    book.give([Placement(*shard, None, site.node or "", Kind.SLICE, ranks, memory_bytes=1)])


def sites(book: SliceBook) -> dict[Shard, Site]:
    return {shard: site_of(there) for shard, there in book.taken.items()}


def test_who_says_what_the_plan_says_stands_there(book: SliceBook) -> None:
    give(book, A, FIRST)
    planned = book.taken[A]
    assert book.note(A, FIRST, None) == ()
    assert book.taken[A] == planned
    assert not book.news.is_set()


def test_who_was_to_get_the_slice_of_one_that_stands_there_has_to_go(book: SliceBook) -> None:
    give(book, A, FIRST)
    assert book.note(B, FIRST, None) == (A,)
    assert sites(book) == {B: FIRST}


def test_who_comes_to_stand_where_another_does_has_to_go_itself(book: SliceBook) -> None:
    give(book, A, FIRST)
    book.note(A, FIRST, None)
    give(book, B, SECOND)
    assert book.note(B, FIRST, None) == (B,)
    assert sites(book) == {A: FIRST}
    assert book.news.is_set()


def test_a_new_life_of_a_shard_does_not_stand_where_the_last_did(book: SliceBook) -> None:
    book.note(A, FIRST, None)
    assert book.leave(A) == "node"
    give(book, A, FIRST)
    assert book.note(B, FIRST, None) == (A,)


def test_who_has_another_slice_than_planned_leaves_the_planned_one(book: SliceBook) -> None:
    give(book, A, FIRST)
    assert book.note(A, SECOND, None) == ()
    assert sites(book) == {A: SECOND}
    assert book.news.is_set()


def test_who_has_not_said_which_it_has_is_named_until_it_has_or_is_gone(book: SliceBook) -> None:
    for shard in (A, B, C):
        book.expect(shard)
    assert book.unsaid == "a/shard-0, b/shard-0, c/shard-0 may have a slice, and has not said which"
    book.note(A, Site("node"), None)
    assert book.leave(B) is None
    assert book.unsaid == "c/shard-0 may have a slice, and has not said which"
    book.note(C, FIRST, None)
    assert book.unsaid == ""
