"""The prefix index against a naive one, and the choice of a shard."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.leases import LeaseEntry, Load, ShardBook
from cluster.messages import Lease, PageHash, Reason, ShardCapacity, ShardRef, Submission
from cluster.routing import DECODE_TOKENS, EXPLAINED, Placement, PrefixIndex, place

LEASED = LeaseEntry(
    Lease("other", 1, ShardRef("a", "m", "a", "1"), 0, Reason(0.0, ())), Load(0, 0, 0), 0.0
)
PAGES = tuple(bytes([n]) * 16 for n in range(6))
MOVES = st.tuples(
    st.sampled_from(["store", "remove", "drop"]),
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.sampled_from(PAGES), unique=True),
)


def leading(pages: list[PageHash], held: set[PageHash]) -> int:
    return next((n for n, page in enumerate(pages) if page not in held), len(pages))


@given(moves=st.lists(MOVES, max_size=30), prompt=st.lists(st.sampled_from(PAGES), unique=True))
@settings(derandomize=True, deadline=None)
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
    assert index.match(prompt) == {shard: depth for shard, depth in expected.items() if depth}
    assert len(index) == sum(len(held) for held in naive.values())


@given(moves=st.lists(MOVES, max_size=30), bound=st.integers(1, 8))
@settings(derandomize=True, deadline=None)
def test_the_index_never_exceeds_its_bound(
    moves: list[tuple[str, str, list[PageHash]]], bound: int
) -> None:
    index = PrefixIndex(bound)
    for _, shard, pages in moves:
        index.store(shard, pages)
        index.match(pages)
        index.verify()
        assert len(index) <= bound


def test_of_a_prefix_the_index_forgets_the_tail_first() -> None:
    index = PrefixIndex(max_pages=3)
    index.store("a", PAGES[:3])
    index.store("b", PAGES[5:])
    assert index.match(PAGES[:3]) == {"a": 2}


def test_what_is_asked_for_is_forgotten_last() -> None:
    index = PrefixIndex(max_pages=2)
    index.store("a", PAGES[:1])
    index.store("a", PAGES[1:2])
    index.match(PAGES[:1])
    index.store("a", PAGES[2:3])
    assert index.match(PAGES[:1]) == {"a": 1}
    assert index.match(PAGES[1:2]) == {}


def book(name: str, **state: int) -> ShardBook:
    """A shard of 64 pages of 16 tokens, with 4 slots and a context of 512."""
    capacity = ShardCapacity(block_size=16, total_pages=64, max_num_seqs=4, max_model_len=512)
    shard = ShardBook(ShardRef(name, "m", name, "1"), capacity, 64, 1, 0.0)
    for field, value in state.items():
        setattr(shard, field, value)
    return shard


def placed(
    submission: Submission, *shards: ShardBook, index: PrefixIndex | None = None
) -> Placement | None:
    return place(submission, {s.ref.shard: s for s in shards}, index or PrefixIndex(100))


def asking(
    prompt_tokens: int = 64, choices: int = 1, pages: tuple[PageHash, ...] = ()
) -> Submission:
    return Submission("q", "r", "m", "t", "P1", prompt_tokens, 16, choices, pages)


def name_of(placement: Placement | None) -> str | None:
    return None if placement is None else placement.shard.ref.shard


def test_a_cached_prefix_wins_over_an_equal_shard_without_it() -> None:
    index = PrefixIndex(100)
    index.store("b", PAGES[:3])
    placement = placed(asking(pages=PAGES[:4]), book("a"), book("b"), index=index)
    assert placement is not None
    assert (name_of(placement), placement.cached_tokens) == ("b", 48)
    assert placement.load.prefill_tokens == 16


def test_work_in_front_of_a_cached_prefix_can_cost_more_than_it_saves() -> None:
    index = PrefixIndex(100)
    index.store("b", PAGES[:3])
    placement = placed(
        asking(pages=PAGES[:4]), book("a"), book("b", prefill_tokens=100), index=index
    )
    assert name_of(placement) == "a"


def test_a_prompt_cached_to_its_last_page_still_computes_that_page() -> None:
    index = PrefixIndex(100)
    index.store("a", PAGES[:4])
    placement = placed(asking(prompt_tokens=64, pages=PAGES[:4]), book("a"), index=index)
    assert placement is not None
    assert placement.cached_tokens == 48


def test_running_sequences_and_used_pages_make_a_shard_dearer() -> None:
    assert name_of(placed(asking(), book("a", sequences=1), book("b"))) == "b"
    assert name_of(placed(asking(), book("a", free_pages=32), book("b"))) == "b"


def test_the_cost_adds_up_as_documented() -> None:
    shard = book("a", prefill_tokens=100, sequences=2, free_pages=40, promised_pages=8)
    placement = placed(asking(prompt_tokens=64), shard)
    assert placement is not None
    [candidate] = placement.candidates
    assert candidate.outstanding_tokens == 100 + 2 * DECODE_TOKENS
    assert candidate.cost == candidate.outstanding_tokens + 64 + 64 * 0.5


def test_of_equals_the_least_recently_granted_is_taken() -> None:
    assert name_of(placed(asking(), book("a", last_grant=9), book("b", last_grant=3))) == "b"


def test_a_lease_names_the_best_candidates_cheapest_first() -> None:
    shards = [book(f"s{n}", prefill_tokens=100 - n) for n in range(10)]
    placement = placed(asking(), *shards)
    assert placement is not None
    assert [c.shard for c in placement.candidates] == ["s9", "s8", "s7", "s6"][:EXPLAINED]


def test_a_shard_without_slots_for_all_choices_has_no_room() -> None:
    full = book("a", sequences=2)
    full.leases["other"] = LEASED
    assert placed(asking(choices=3), full) is None
    assert name_of(placed(asking(choices=2), full)) == "a"


def test_a_shard_whose_free_pages_are_promised_has_no_room() -> None:
    full = book("a", free_pages=10, promised_pages=6)
    full.leases["other"] = LEASED
    assert placed(asking(prompt_tokens=64), full) is None
    assert name_of(placed(asking(prompt_tokens=48), full)) == "a"


def test_an_idle_shard_takes_whatever_it_could_ever_hold() -> None:
    assert name_of(placed(asking(prompt_tokens=496, choices=9), book("a", free_pages=1))) == "a"
    assert placed(asking(prompt_tokens=497), book("a")) is None
