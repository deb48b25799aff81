"""Files behind host memory: what is written when, what comes back, and what is lost."""

from __future__ import annotations

import pytest

from cluster.blocks import BlockPool, page_hash, root_hash
from cluster.errors import LedgerBroken
from cluster.findable import PageEvents
from cluster.folder_tier import FAILURES, FolderTier, PageRead, PageWrite, Read, Written
from cluster.host_tier import HostTier

A, B, C, D, E = (page_hash(root_hash(b""), [number]) for number in range(5))


def kept(slots: int, room: int, *contents: bytes) -> HostTier:
    """Host memory that got these from the device, all moves done; files are one byte each."""
    tier = HostTier(slots, FolderTier(room, 1))
    for page, content in enumerate(contents):
        tier.keep(content, page)
    tier.drain_moves()
    return tier


def written(tier: HostTier) -> list[bytes]:
    """Contents for which writes are ordered now, all done at once."""
    orders, _ = tier.drain_orders()
    for order in orders:
        tier.settle(Written(order.content, 1))
    return [order.content for order in orders]


def test_while_slots_are_free_nothing_is_written() -> None:
    assert written(kept(8, 8, A, B, C)) == []


def test_the_least_recently_used_are_written_before_their_slots_are_needed() -> None:
    tier = kept(8, 8, A, B, C, D, E, *(bytes([n]) for n in range(3)))
    assert written(tier) == [A, B]


def test_what_is_not_yet_saved_from_the_device_is_not_written() -> None:
    tier = kept(1, 8)
    tier.keep(A, 0)
    assert written(tier) == []
    tier.drain_moves()
    assert written(tier) == [A]


def test_a_slot_that_is_being_written_is_given_to_nobody() -> None:
    tier = kept(1, 8, A)
    tier.drain_orders()
    assert tier.keep(B, 1) == B
    tier.settle(Written(A, 1))
    assert tier.keep(B, 1) == A
    assert A in tier.folder
    tier.verify({})


def test_a_page_in_the_making_is_not_found_in_the_folder() -> None:
    tier = kept(1, 8, A)
    tier.drain_orders()
    assert A not in tier.folder
    tier.settle(Written(A, 1))
    assert A in tier.folder


def test_what_comes_back_is_kept_only_once_it_is_read() -> None:
    tier = kept(1, 8, A)
    written(tier)
    tier.keep(B, 1)
    tier.drain_moves()
    assert tier.fetch([A]) == [B]
    assert (A in tier, tier.is_arriving(A)) == (False, True)
    assert tier.drain_orders()[0] == (PageRead(A, slot=0, file=0),)
    tier.settle(Read(A, whole=True))
    assert (A in tier, tier.awaits_files) == (True, False)
    tier.verify({})


def test_what_cannot_be_read_is_forgotten_and_its_slot_is_free() -> None:
    tier = kept(1, 8, A)
    written(tier)
    tier.keep(B, 1)
    tier.fetch([A])
    tier.settle(Read(A, whole=False))
    assert (A in tier, A in tier.folder, len(tier)) == (False, False, 0)
    assert tier.keep(C, 2) is None
    assert tier.folder.stats().corrupt == 1
    tier.verify({})


def test_a_fetched_prefix_does_not_push_itself_out() -> None:
    tier = kept(2, 8, A, B)
    assert written(tier) == [A]
    tier.keep(C, 2)
    tier.drain_moves()
    assert written(tier) == [B]
    tier.keep(D, 3)
    assert tier.fetch([A, B, C]) == [D]
    assert (tier.is_arriving(A), tier.is_arriving(B), C in tier) == (True, False, True)


def test_the_oldest_files_go_first_and_those_being_read_stay() -> None:
    folder = FolderTier(2, 1)
    for content in (A, B):
        folder.write(content, 0)
        folder.settle(Written(content, 1))
    folder.read(A, 1)
    assert folder.write(C, 2) == (PageWrite(C, 2, file=2, dropped=(1,)), (B,))
    assert folder.write(D, 3) is None
    folder.verify()


def test_small_files_leave_room_for_more() -> None:
    folder = FolderTier(room=10, most=5)
    for content in (A, B, C):
        begun = folder.write(content, 0)
        assert begun is not None
        assert begun[1] == ()
        folder.settle(Written(content, 2))
    begun = folder.write(D, 0)
    assert begun is not None
    assert begun[1] == (A,)
    folder.verify()


def test_a_disk_that_is_full_gets_no_more_than_it_has() -> None:
    folder = FolderTier(room=10, most=1)
    folder.write(A, 0)
    folder.settle(Written(A, 1))
    folder.write(B, 0)
    folder.settle(Written(B, None, full=True))
    assert folder.write(C, 0) == (PageWrite(C, 0, file=2, dropped=(0,)), (A,))
    folder.verify()


def test_what_could_not_be_written_for_another_reason_takes_no_room_away() -> None:
    folder = FolderTier(room=2, most=1)
    folder.write(A, 0)
    folder.settle(Written(A, 1))
    folder.write(B, 0)
    folder.settle(Written(B, None))
    assert folder.write(C, 0) == (PageWrite(C, 0, file=2), ())
    folder.verify()


def fail(folder: FolderTier, times: int) -> None:
    for number in range(times):
        content = b"bad%d" % number
        assert folder.write(content, 0) is not None
        folder.settle(Written(content, None))


def test_a_disk_that_fails_again_and_again_is_given_up_with_all_it_has() -> None:
    folder = FolderTier(room=20, most=1)
    for content in (A, B):
        folder.write(content, 0)
        folder.settle(Written(content, 1))
    folder.read(B, 1)
    fail(folder, FAILURES)
    assert (A in folder, B in folder) == (False, True)
    assert (folder.drain_left(), folder.drain_left()) == ((A,), ())
    assert folder.write(C, 0) is None
    folder.verify()
    folder.settle(Read(B, whole=True))
    assert folder.stats().given_up == 1


def test_it_is_tried_again_and_given_up_by_one_more_failure() -> None:
    folder = FolderTier(room=20, most=1)
    folder.write(A, 0)
    folder.settle(Written(A, 1))
    fail(folder, FAILURES)
    folder.try_again()
    begun = folder.write(B, 0)
    assert begun is not None
    assert begun[0].dropped == (0,)
    folder.settle(Written(B, None))
    assert folder.write(C, 0) is None
    assert folder.stats().given_up == 2


def test_what_goes_well_while_it_rests_is_no_new_start() -> None:
    folder = FolderTier(room=20, most=1)
    folder.write(A, 0)
    folder.settle(Written(A, 1))
    folder.read(A, 1)
    folder.write(B, 0)
    fail(folder, FAILURES)
    folder.settle(Read(A, whole=True))
    folder.settle(Written(B, 1))
    folder.try_again()
    fail(folder, 1)
    assert folder.resting
    assert folder.stats().given_up == 2


def test_a_success_in_between_starts_anew() -> None:
    folder = FolderTier(room=20, most=1)
    for content in (A, B, C):
        fail(folder, FAILURES - 1)
        folder.write(content, 0)
        folder.settle(Written(content, 1))
    assert set(folder.contents()) == {A, B, C}


def test_a_full_disk_is_not_given_up() -> None:
    folder = FolderTier(room=100, most=1)
    for number in range(5 * FAILURES):
        folder.write(b"%d" % number, 0)
        full = number >= 3 * FAILURES
        folder.settle(Written(b"%d" % number, None if full else 1, full))
    assert folder.stats().given_up == 0
    assert folder.write(A, 0) is not None


def test_what_a_disk_that_was_given_up_had_can_no_longer_be_found() -> None:
    pool = BlockPool(1, 4, prefix_caching=True, host=HostTier(1, FolderTier(20, 1)))
    hashes = [bytes([number]) for number in range(FAILURES + 3)]
    for number, content in enumerate(hashes):
        pages = pool.allocate(1) or []
        pool.drain_moves()
        for order in pool.drain_orders():
            pool.settle(Written(order.content, 1 if number < 3 else None))
        pool.seal(pages[0], content)
        pool.release(pages)
    pool.drain_orders()
    assert hashes[0] not in pool.findable()
    assert set(pool.findable()) == set(hashes[-2:])
    pool.verify([])


def test_what_was_not_ordered_is_not_settled() -> None:
    folder = FolderTier(2, 1)
    with pytest.raises(LedgerBroken, match="without order"):
        folder.settle(Written(A, 1))
    with pytest.raises(LedgerBroken, match="without order"):
        folder.settle(Read(A, whole=True))
    with pytest.raises(LedgerBroken, match="is no file"):
        folder.read(A, 0)


def test_a_hash_is_removed_only_when_no_tier_has_it() -> None:
    pool = BlockPool(1, 4, prefix_caching=True, host=HostTier(1, FolderTier(2, 1)))
    for content in (A, B, C):
        pages = pool.allocate(1) or []
        pool.drain_moves()
        for order in pool.drain_orders():
            pool.settle(Written(order.content, 1))
        pool.seal(pages[0], content)
        pool.release(pages)
    assert pool.drain_events() == PageEvents((A, B, C), ())
    assert set(pool.findable()) == {A, B, C}
    assert (pool.filed([A, B]), pool.filed([B]), pool.reach([A])) == (True, False, 0)
    pool.fetch([A])
    pool.settle(Read(A, whole=False))
    assert pool.drain_events() == PageEvents((), (A,))


def test_what_makes_room_before_it_was_saved_is_not_saved() -> None:
    tier = kept(1, 8, A)
    written(tier)
    tier.keep(B, 1)
    assert tier.fetch([A]) == [B]
    tier.verify({})
    assert tier.drain_moves() == ((), ())
