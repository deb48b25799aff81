"""What ledgers disagree about: what is on its way is left alone, what lasts is found once."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cluster.audit import Discrepancy, Doubts, ShardBooks, differences

IDS = st.frozensets(st.sampled_from("abcdefgh"))


def books(doors: str = "", engine: str = "", leases: str | None = "") -> ShardBooks:
    known = None if leases is None else frozenset(leases)
    return ShardBooks(frozenset(doors), frozenset(engine), known)


def found(given: ShardBooks) -> dict[Discrepancy, set[str]]:
    return {kind: set(ids) for kind, ids in differences(given).items() if ids}


def test_each_kind_of_disagreement_is_named() -> None:
    assert found(books(doors="a", engine="ab", leases="ab")) == {Discrepancy.UNOWNED: {"b"}}
    assert found(books(doors="ab", engine="a", leases="ab")) == {Discrepancy.FORGOTTEN: {"b"}}
    assert found(books(doors="ab", engine="ab", leases="a")) == {Discrepancy.UNLEASED: {"b"}}
    assert found(books(doors="a", engine="a", leases="ab")) == {Discrepancy.UNHELD: {"b"}}


def test_a_scheduler_that_does_not_answer_is_not_judged() -> None:
    assert found(books(doors="a", engine="a", leases=None)) == {}


@given(IDS, IDS, IDS)
def test_only_books_that_are_the_same_agree(
    doors: frozenset[str], engine: frozenset[str], leases: frozenset[str]
) -> None:
    wrong = found(ShardBooks(doors, engine, leases))
    assert (wrong == {}) == (doors == engine == leases)
    assert set().union(*wrong.values()) == (doors | engine | leases) - (doors & engine & leases)


def test_what_is_gone_at_the_next_look_was_on_its_way() -> None:
    doubts = Doubts()
    assert [doubts.confirmed(one) for one in ("a", "b", "a", "")] == [frozenset()] * 4


@given(st.lists(IDS))
def test_only_what_lasts_from_one_look_to_the_next_is_told_and_not_at_each(
    looks: list[frozenset[str]],
) -> None:
    doubts = Doubts()
    told = [doubts.confirmed(look) for look in looks]
    for (before, now), (told_before, told_now) in zip(pairwise(looks), pairwise(told), strict=True):
        assert told_now == (before & now) - told_before
