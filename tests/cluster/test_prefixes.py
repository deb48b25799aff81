"""The prefix index against a naive one: what it knows, forgets, and shows first."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from cluster.messages import PageHash
from cluster.prefixes import Match, PrefixIndex

PAGES = tuple(bytes([n]) * 16 for n in range(6))
MOVES = st.tuples(
    st.sampled_from(["store", "remove", "drop"]),
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.sampled_from(PAGES), unique=True),
)


def leading(pages: list[PageHash], held: set[PageHash]) -> int:
    return next((n for n, page in enumerate(pages) if page not in held), len(pages))


def depths(index: PrefixIndex, prompt: Sequence[PageHash]) -> dict[str, int]:
    match = index.match(prompt)
    return {shard: match.pages_of(shard) for shard in "abc"}


@given(moves=st.lists(MOVES, max_size=30), prompt=st.lists(st.sampled_from(PAGES), unique=True))
def test_the_index_matches_what_a_set_a_shard_would(
    moves: list[tuple[str, str, list[PageHash]]], prompt: list[PageHash]
) -> None:
    index = PrefixIndex(max_pages=100)
    naive: dict[str, set[PageHash]] = {"a": set(), "b": set(), "c": set()}
    for move, shard, pages in moves:
        if move == "store":
            index.store(shard, pages)
            naive[shard] |= set(pages)
        elif move == "remove":
            index.remove(shard, pages)
            naive[shard] -= set(pages)
        else:
            index.drop(shard)
            naive[shard] = set()
        index.verify()
    expected = {shard: leading(prompt, held) for shard, held in naive.items()}
    assert depths(index, prompt) == expected
    assert len(index) == sum(len(held) for held in naive.values())


@given(moves=st.lists(MOVES, max_size=30), bound=st.integers(1, 8))
def test_the_index_never_exceeds_its_bound(
    moves: list[tuple[str, str, list[PageHash]]], bound: int
) -> None:
    index = PrefixIndex(bound)
    for _, shard, pages in moves:
        index.store(shard, pages)
        index.use(pages[: index.match(pages).depth])
        index.verify()
        assert len(index) <= bound


def test_of_a_prefix_the_index_forgets_the_tail_first() -> None:
    index = PrefixIndex(max_pages=3)
    index.store("a", PAGES[:3])
    index.store("b", PAGES[5:])
    assert depths(index, PAGES[:3]) == {"a": 2, "b": 0, "c": 0}


def test_what_is_asked_for_is_forgotten_last() -> None:
    index = PrefixIndex(max_pages=2)
    index.store("a", PAGES[:1])
    index.store("a", PAGES[1:2])
    index.use(PAGES[:1])
    index.store("a", PAGES[2:3])
    assert index.match(PAGES[:1]).depth == 1
    assert index.match(PAGES[1:2]).depth == 0


def held_by(**held: int) -> Match:
    index = PrefixIndex(max_pages=1000)
    for shard, pages in held.items():
        index.store(shard, PAGES[:pages])
    return index.match(PAGES)


def test_the_holders_of_most_come_first() -> None:
    assert held_by(a=1, b=4, c=2).deepest(2, turn=0) == ["b", "c"]


@given(turn=st.integers(0, 100), limit=st.integers(1, 9))
def test_all_holders_are_found_whatever_the_turn_and_none_twice(turn: int, limit: int) -> None:
    found = held_by(a=2, b=5, c=2, d=2, e=2).deepest(limit, turn)
    assert len(found) == len(set(found)) == min(limit, 5)
    assert found[0] == "b"


def test_many_equal_holders_take_turns_at_being_first() -> None:
    match = held_by(**dict.fromkeys("abcdefgh", 3))
    assert {match.deepest(1, turn)[0] for turn in range(8)} == set("abcdefgh")


def test_use_is_noted_from_when_the_index_is_half_full() -> None:
    index = PrefixIndex(max_pages=5)
    index.store("a", PAGES[:1])
    index.store("a", PAGES[1:2])
    index.use(PAGES[:1])  # two of five: not noted
    index.store("a", PAGES[2:3])
    index.use(PAGES[1:2])
    index.store("a", PAGES[3:5])
    index.store("a", PAGES[5:])
    assert [depths(index, [page])["a"] for page in PAGES] == [0, 1, 1, 1, 1, 1]
    index.store("a", PAGES[:1])
    assert [depths(index, [page])["a"] for page in PAGES] == [1, 1, 0, 1, 1, 1]


def test_matching_changes_nothing_unless_it_was_of_use() -> None:
    index = PrefixIndex(max_pages=2)
    index.store("a", PAGES[:1])
    index.store("a", PAGES[1:2])
    index.match(PAGES[:1])
    index.store("a", PAGES[2:3])
    assert index.match(PAGES[:1]).depth == 0
