"""The choice of a shard: what it costs, who has room, and that load spreads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.loads import ModelShards
from cluster.messages import Lease, PageHash, Reason, ShardRef, Submission
from cluster.prefixes import PrefixIndex
from cluster.reports import ShardCapacity
from cluster.routing import EXPLAINED, Placement, Placer
from cluster.scheduling_config import PlacementConfig
from cluster.shard_books import Bill, LeaseEntry, Load, ShardBook

CONFIG = PlacementConfig(affinity_min_tokens=17, explore=0)
LEASED = LeaseEntry(
    Lease("other", 1, ShardRef("a", "m", "a", "1"), 0, Reason(0.0, ())),
    Load(0, 0, 0),
    Bill("t", "P1", 0.0),
    0.0,
)
PAGES = tuple(bytes([n]) * 16 for n in range(6))


def book(name: str, **state: object) -> ShardBook:
    """A shard of 64 pages of 16 tokens, with 4 slots and a context of 512."""
    capacity = ShardCapacity(block_size=16, total_pages=64, max_num_seqs=4, max_model_len=512)
    shard = ShardBook(ShardRef(name, "m", name, "1"), capacity, 64, 1, 0.0)
    for field, value in state.items():
        setattr(shard, field, value)
    return shard


def placed(
    submission: Submission,
    *shards: ShardBook,
    index: PrefixIndex | None = None,
    config: PlacementConfig = CONFIG,
    rank: int = 0,
) -> Placement | None:
    model = ModelShards(config)
    for shard in shards:
        model.add(shard)
    match = (index or PrefixIndex(100)).match(submission.page_hashes)
    return Placer(config).place(submission, model, match, rank)


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
        asking(pages=PAGES[:4]), book("a"), book("b", prefill_tokens=200), index=index
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
    assert candidate.outstanding_tokens == 100 + 2 * 64
    assert candidate.cost == 0.25 * candidate.outstanding_tokens + 64 + 64 * 0.5


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


def test_a_short_template_cached_on_one_shard_gathers_nobody_there() -> None:
    """As after a shard was replaced: the new one has nothing yet."""
    index = PrefixIndex(100)
    index.store("old", PAGES[:1])
    shards = [book("new", last_grant=1), book("old", last_grant=2)]
    assert name_of(placed(asking(pages=PAGES[:1]), *shards, index=index)) == "new"


def test_a_cached_prefix_is_worth_waiting_for_beyond_the_window_within_patience() -> None:
    index = PrefixIndex(100)
    index.store("b", PAGES[:3])
    config = PlacementConfig(
        prefill_window_tokens=20, affinity_min_tokens=0, explore=0, patience=2.0
    )

    def chosen(prefill_tokens: int, pages: tuple[PageHash, ...]) -> str | None:
        busy = book("b", prefill_tokens=prefill_tokens)
        busy.leases["other"] = LEASED
        return name_of(placed(asking(pages=pages), busy, index=index, config=config))

    assert chosen(20, pages=()) is None
    assert chosen(20 + 2 * 48 - 1, pages=PAGES[:4]) == "b"
    assert chosen(20 + 2 * 48, pages=PAGES[:4]) is None


def test_a_shard_of_another_model_that_holds_the_same_pages_is_none_of_ours() -> None:
    index = PrefixIndex(100)
    index.store("other model's", PAGES[:3])
    assert name_of(placed(asking(pages=PAGES[:4]), book("a"), index=index)) == "a"


def test_what_explores_goes_by_load_alone() -> None:
    index = PrefixIndex(100)
    index.store("b", PAGES[:3])
    always = PlacementConfig(affinity_min_tokens=0, explore=1)
    shards = [book(f"s{n}") for n in range(8)] + [book("b", prefill_tokens=10)]
    assert name_of(placed(asking(pages=PAGES[:4]), *shards, index=index)) == "b"
    placement = placed(asking(pages=PAGES[:4]), *shards, index=index, config=always)
    assert name_of(placement) == "s0"


def test_explorers_are_the_share_that_was_configured() -> None:
    config = PlacementConfig(affinity_min_tokens=0, explore=0.05)
    index = PrefixIndex(100)
    index.store("a", PAGES[:3])
    model = ModelShards(config)
    model.add(book("a", last_grant=1))
    model.add(book("b"))
    placer = Placer(config)
    explored = 0
    for _ in range(1000):
        explored += name_of(placer.place(asking(pages=PAGES), model, index.match(PAGES))) == "b"
        placer.next()
    assert 45 <= explored <= 55


LOADS = st.fixed_dictionaries(
    {
        "sequences": st.integers(0, 4),
        "free_pages": st.integers(0, 64),
        "prefill_tokens": st.integers(0, 3000),
        "last_grant": st.integers(0, 50),
    }
)


@given(
    loads=st.lists(LOADS, max_size=30),
    prompt=st.integers(1, 400),
    choices=st.integers(1, 3),
    rank=st.integers(0, 2),
)
def test_whoever_fits_anywhere_is_placed_where_it_fits(
    loads: list[dict[str, int]], prompt: int, choices: int, rank: int
) -> None:
    shards = [book(f"s{n}", **load) for n, load in enumerate(loads)]
    for number, shard in enumerate(shards):
        shard.leases["other"] = LEASED
        shard.prefill_behind = [shard.prefill_tokens] * (number % 3)
    asked = asking(prompt_tokens=prompt, choices=choices)
    alone = [shard for shard in shards if placed(asked, shard, rank=rank) is not None]
    placement = placed(asked, *shards, rank=rank)
    assert (placement is None) == (not alone)
    assert placement is None or placement.shard in alone


def test_a_shard_with_room_for_batch_is_found_behind_those_that_have_room_for_chats_alone() -> None:
    chats_alone = [
        book(f"c{n}", prefill_tokens=120, prefill_behind=[120, 120], sequences=sequences)
        for n, sequences in enumerate((1, 1, 1, 3))
    ]
    open_to_all = book("open", sequences=3, free_pages=40)
    for shard in (*chats_alone, open_to_all):
        shard.leases["other"] = LEASED
    shards, narrow = (*chats_alone, open_to_all), PlacementConfig(prefill_window_tokens=100)
    assert name_of(placed(asking(), *shards, config=narrow, rank=2)) == "open"
    assert name_of(placed(asking(), *shards, config=narrow, rank=0)) == "c0"


@given(moves=st.lists(st.tuples(st.integers(0, 9), LOADS), max_size=40))
def test_the_orders_stay_sorted_as_loads_change(moves: list[tuple[int, dict[str, int]]]) -> None:
    model = ModelShards(CONFIG)
    for number, load in moves:
        name = f"s{number}"
        if name in model.shards and load["free_pages"] % 5 == 0:
            taken = model[name].sequences
            model.changed(model[name], -taken)
            model.remove(name)
            continue
        if name not in model.shards:
            model.add(book(name))
            model[name].leases["other"] = LEASED
        shard = model[name]
        model.changed(shard, load["sequences"] - shard.sequences)
        for field, value in load.items():
            setattr(shard, field, value)
        shard.prefill_behind = [shard.prefill_tokens] * (number % 3)
        model.refresh()
        for rank in range(number % 4):
            model.least_loaded(3, rank)
            list(model.roomiest(1, rank))
        model.verify()


@pytest.mark.parametrize("shards", [20, 2000])
def test_looking_for_room_for_many_choices_takes_as_many_looks_however_many_shards(
    shards: int,
) -> None:
    model = ModelShards(CONFIG)
    for number in range(shards):
        shard = book(f"s{number}", sequences=1 + number % 3)
        shard.leases["other"] = LEASED
        model.add(shard)
    model.refresh()
    assert [view.places for view in model.roomiest(2, rank=0)] == [3, 2]
