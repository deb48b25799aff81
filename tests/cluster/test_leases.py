"""The lease book: the table of moves, and what reports make of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from cluster.errors import IllegalTransition, LedgerBroken
from cluster.leases import LeaseBook
from cluster.messages import Lease, Reason, ShardRef
from cluster.reports import NO_PREFILLING, HeldRequest, Prefilling, ShardCapacity, ShardReport
from cluster.shard_books import OVER, TRANSITIONS, Bill, LeaseState, Load

CAPACITY = ShardCapacity(block_size=16, total_pages=64, max_num_seqs=8, max_model_len=512)
SHARD = ShardRef("s", "m", "s", "life-1")
BILL = Bill("t", "P1", since=0.0)
ROADS = {
    LeaseState.GRANTED: (),
    LeaseState.CLAIMED: (LeaseState.CLAIMED,),
    LeaseState.STARTED: (LeaseState.STARTED,),
}


@pytest.fixture
def book() -> Iterator[LeaseBook]:
    book = LeaseBook(epoch=1, claim_timeout_s=30)
    book.reconcile(report(1, full=True), now=0.0)
    yield book
    book.verify()


def report(
    number: int,
    started: tuple[str, ...] = (),
    ended: tuple[str, ...] = (),
    held: tuple[HeldRequest, ...] = (),
    full: bool = False,
    shard: ShardRef = SHARD,
    prefilling: Prefilling = NO_PREFILLING,
) -> ShardReport:
    return ShardReport(
        shard, number, CAPACITY, 64, started, ended, full=full, held=held, prefilling=prefilling
    )


def grant(book: LeaseBook, request_id: str = "a", now: float = 0.0) -> None:
    book.grant(Lease(request_id, 1, SHARD, 0, Reason(0.0, ())), Load(32, 3, 1), BILL, now)


def state(book: LeaseBook, request_id: str = "a") -> LeaseState | None:
    entry = book.entry(request_id)
    return None if entry is None else entry.state


def weight(book: LeaseBook) -> tuple[int, int, int]:
    shard = book.serving("m")["s"]
    return shard.prefill_tokens, shard.promised_pages, shard.sequences


@pytest.mark.parametrize(("here", "there"), list(itertools.product(ROADS, LeaseState)))
def test_each_move_is_made_or_refused_as_the_table_says(
    book: LeaseBook, here: LeaseState, there: LeaseState
) -> None:
    grant(book)
    for step in ROADS[here]:
        book.move("a", step)
    if there in TRANSITIONS[here]:
        book.move("a", there)
        assert state(book) is (None if there in OVER else there)
    else:
        with pytest.raises(IllegalTransition):
            book.move("a", there)
        assert state(book) is here


def test_prompt_and_pages_weigh_until_the_start_and_slots_until_the_end(book: LeaseBook) -> None:
    grant(book)
    assert weight(book) == (32, 3, 1)
    book.settle(report(2, started=("a",)), now=1.0)
    assert weight(book) == (0, 0, 1)
    book.settle(report(3, ended=("a",)), now=1.0)
    assert weight(book) == (0, 0, 0)


def test_how_fast_a_shard_computes_is_its_own_word_however_long_a_prompt_took(
    book: LeaseBook,
) -> None:
    grant(book)
    book.settle(report(2, started=("a",), prefilling=Prefilling(32, 0.5)), now=1000.0)
    [shard] = book.shards()
    assert shard.speed.per_second == 64


def test_a_missing_report_is_noticed(book: LeaseBook) -> None:
    book.settle(report(3), now=1.0)
    assert book.serving("m")["s"].resync
    book.reconcile(report(4, full=True), now=1.0)
    assert not book.serving("m")["s"].resync


def test_an_unclaimed_lease_makes_its_shard_speak_and_expires_if_the_shard_has_none(
    book: LeaseBook,
) -> None:
    grant(book, now=0.0)
    book.doubt_unclaimed(now=29.0)
    assert not book.serving("m")["s"].resync
    book.doubt_unclaimed(now=30.0)
    assert book.serving("m")["s"].resync
    book.reconcile(report(2, full=True), now=31.0)
    assert state(book) is None


def test_nothing_is_kept_of_a_lease_to_doubt_it_once_it_is_claimed(book: LeaseBook) -> None:
    grant(book, now=0.0)
    [entry] = book.serving("m")["s"].leases.values()
    book.unclaimed.remove(entry)
    assert book.unclaimed.doubt(then=0.0) == ()
    book.unclaimed.add(entry)
    assert book.unclaimed.doubt(then=0.0) == ("a",)
    assert book.unclaimed.doubt(then=0.0) == ()
    book.unclaimed.add(entry)
    book.move("a", LeaseState.CLAIMED)
    book.doubt_unclaimed(now=31.0)
    assert not book.serving("m")["s"].resync


def test_a_claimed_lease_that_is_still_to_be_doubted_is_found() -> None:
    book = LeaseBook(epoch=1, claim_timeout_s=30)
    book.reconcile(report(1, full=True), now=0.0)
    grant(book)
    [entry] = book.serving("m")["s"].leases.values()
    book.move("a", LeaseState.CLAIMED)
    book.unclaimed.add(entry)
    with pytest.raises(LedgerBroken, match="not unclaimed: \\['a'\\]"):
        book.verify()


def test_a_lease_that_waits_in_its_shards_own_queue_does_not_expire(book: LeaseBook) -> None:
    grant(book)
    held = HeldRequest("a", prompt_tokens=32, computed_tokens=0, choices=1)
    book.reconcile(report(2, held=(held,), full=True), now=31.0)
    assert state(book) is LeaseState.CLAIMED


def test_a_young_lease_outlives_a_full_report_that_does_not_know_it_yet(book: LeaseBook) -> None:
    grant(book, now=10.0)
    book.reconcile(report(2, full=True), now=11.0)
    assert state(book) is LeaseState.GRANTED


def test_an_end_that_was_missed_shows_in_the_next_full_report(book: LeaseBook) -> None:
    grant(book)
    book.move("a", LeaseState.STARTED)
    book.reconcile(report(2, full=True), now=1.0)
    assert state(book) is None


def test_what_starts_and_ends_while_a_full_report_is_drawn_up_is_not_missed(
    book: LeaseBook,
) -> None:
    for request_id in ("waits", "starts", "arrives", "ends"):
        grant(book, request_id)
    held = tuple(HeldRequest(key, 32, 0, 1) for key in ("waits", "starts"))
    news = report(2, started=("starts", "arrives"), ended=("ends",), held=held, full=True)
    book.reconcile(news, now=31.0)
    states = [state(book, key) for key in ("waits", "starts", "arrives", "ends")]
    assert states == [LeaseState.CLAIMED, LeaseState.STARTED, LeaseState.STARTED, None]
    assert not book.serving("m")["s"].resync


def test_what_a_shard_holds_is_adopted_with_what_is_left_of_its_prompt(book: LeaseBook) -> None:
    held = HeldRequest("a", prompt_tokens=100, computed_tokens=60, choices=2, tenant="t")
    book.reconcile(report(2, held=(held,), full=True), now=1.0)
    assert state(book) is LeaseState.CLAIMED
    assert (book.holding("t").requests, book.holding("t").pages) == (1, 7)
    assert weight(book) == (40, 3 + 2, 2)


def test_a_start_nobody_knows_of_asks_for_a_full_report(book: LeaseBook) -> None:
    book.settle(report(2, started=("stranger",)), now=1.0)
    assert book.serving("m")["s"].resync


def test_a_new_life_of_a_shard_loses_the_leases_of_the_old(book: LeaseBook) -> None:
    grant(book)
    reborn = ShardRef("s", "m", "s", "life-2")
    book.reconcile(report(1, full=True, shard=reborn), now=1.0)
    assert state(book) is None
    assert (book.shard(SHARD), weight(book)) == (None, (0, 0, 0))


def test_books_that_do_not_add_up_are_found() -> None:
    book = LeaseBook(epoch=1, claim_timeout_s=30)
    book.reconcile(report(1, full=True), now=0.0)
    grant(book)
    book.serving("m")["s"].sequences += 1
    with pytest.raises(LedgerBroken, match="sequences kept 2, counted 1"):
        book.verify()


def test_a_door_that_stands_in_the_books_for_nothing_is_found() -> None:
    book = LeaseBook(epoch=1, claim_timeout_s=30)
    book.reconcile(report(1, full=True), now=0.0)
    at_door = BILL._replace(door="d")
    book.grant(Lease("a", 1, SHARD, 0, Reason(0.0, ())), Load(32, 3, 1), at_door, 0.0)
    book.verify()
    assert book.unclaimed.doors == {"d"}
    assert book.unclaimed.at("d") == ("a",)
    [entry] = book.serving("m")["s"].leases.values()
    book.unclaimed.remove(entry)
    with pytest.raises(LedgerBroken, match="unclaimed leases at doors"):
        book.verify()
