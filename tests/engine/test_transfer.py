"""Pages move from engine to engine: the tokens stay the same, and hardly any is computed again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from actors.engine.engine import Engine, build_engine
from actors.engine.families import check_family
from actors.engine.host_pages import HostPages
from actors.engine.kv_cache import KVCache, LayerShape
from actors.engine.transfer import PageTransfer, layout_of
from actors.parcels import Layout, Parcel, intact, pack
from cluster.blocks import BlockPool, page_hashes
from cluster.config import CacheConfig, ModelConfig
from cluster.failover import Transcript
from cluster.hand_over import PageSize, wanted_pages
from cluster.messages import Assignment, Request, Sampling, TokenDelta
from tests.engine.driving import GREEDY, assignment, deltas_of, engine_of, request
from tests.engine.families import make

BLOCK = 4
PROMPT = [7, 11, 13, 17, 19, 23, 29, 31, 37, 41]
SEEDED = Sampling(temperature=0.9, seed=1234, frequency_penalty=0.3, logprobs=2)
KINDS = {
    "greedy": request("greedy", PROMPT, max_tokens=14, sampling=GREEDY),
    "two choices": request("two", PROMPT, 10, SEEDED, choices=2),
}
Words = list[tuple[int, tuple[int, ...]]]


@pytest.fixture(scope="module")
def engines() -> tuple[Engine, Engine]:
    return engine_of("llama"), engine_of("llama")


def transfer(engine: Engine) -> PageTransfer:
    assert engine.transfer is not None
    return engine.transfer


def parcel_for(source: Engine, target: Engine, assigned: Assignment) -> Parcel:
    lacking = transfer(target).lacking(wanted_pages(assigned, BLOCK))
    return pack(transfer(source).layout, *transfer(source).give(transfer(target).layout, lacking))


def unpack(target: Engine, assigned: Assignment, parcel: Parcel) -> int:
    """As a shard does: what is not as it was is left out. How many pages were kept."""
    sound = intact(parcel, transfer(target).layout)
    chain = wanted_pages(assigned, BLOCK)
    kept = transfer(target).take(chain, parcel.hashes[:sound], parcel.data[:sound])
    target.verify()
    return kept


def start(engine: Engine, wanted: Request, place: int, salt: bytes) -> tuple[Assignment, Words]:
    """Let it run until so many tokens are out; with what, and how, it goes on."""
    transcript, heard = Transcript(wanted.choices), []
    assigned = replace(assignment(wanted), salt=salt)
    for delta in deltas_of(engine, assigned):
        transcript.enter(delta)
        heard.append(delta)
        if len(heard) == place:
            break
    return replace(assigned, emitted=transcript.emitted()), words(heard)


def words(deltas: list[TokenDelta]) -> Words:
    return [(delta.choice, delta.tokens) for delta in deltas]


def by_choice(said: Words) -> Words:
    return sorted(said, key=lambda one: one[0])


def computed_by(engine: Engine, assigned: Assignment) -> tuple[Words, int]:
    """What comes of it there, and how many tokens that took."""
    before = engine.stats().tokens_computed
    said = words(list(deltas_of(engine, assigned)))
    return said, engine.stats().tokens_computed - before


@pytest.mark.parametrize("kind", KINDS)
def test_moved_at_any_token_it_goes_on_the_same_and_computes_partial_pages_only(
    engines: tuple[Engine, Engine], kind: str
) -> None:
    source, target = engines
    wanted = KINDS[kind]
    expected = by_choice(words(list(deltas_of(source, replace(assignment(wanted), salt=b"-")))))
    for place in range(1, len(expected)):
        going_on, heard = start(source, wanted, place, salt=f"{kind}{place}".encode())
        unpack(target, going_on, parcel_for(source, target, going_on))
        rest, computed = computed_by(target, going_on)
        assert by_choice(heard + rest) == expected
        # Of each choice the page that is not full, and of a follower the last token of the prompt.
        assert computed <= len(rest) + wanted.choices * BLOCK


def test_only_pages_that_are_not_there_are_fetched(engines: tuple[Engine, Engine]) -> None:
    source, target = engines
    list(deltas_of(target, replace(assignment(KINDS["greedy"]), salt=b"shared")))
    longer = request("longer", [*PROMPT, 3, 5, 7, 9], 6)
    going_on, _ = start(source, longer, 3, salt=b"shared")
    parcel = parcel_for(source, target, going_on)
    assert parcel.hashes == wanted_pages(going_on, BLOCK)[len(PROMPT) // BLOCK :]
    assert unpack(target, going_on, parcel) == len(parcel.hashes)


@pytest.mark.parametrize("spoilt", [0, 1, 2])
def test_a_page_with_a_wrong_byte_is_left_out_with_all_that_follow_and_computed(
    engines: tuple[Engine, Engine], spoilt: int
) -> None:
    source, target = engines
    going_on, heard = start(source, KINDS["greedy"], 6, salt=f"wrong {spoilt}".encode())
    parcel = parcel_for(source, target, going_on)
    parcel.data[spoilt, 5] ^= 1
    assert len(parcel.hashes) == 3
    assert unpack(target, going_on, parcel) == spoilt
    rest, computed = computed_by(target, going_on)
    assert heard + rest == start(source, KINDS["greedy"], 14, salt=b"-")[1]
    assert computed == len(PROMPT) + 6 - spoilt * BLOCK + len(rest) - 1


def test_pages_that_changed_places_are_refused(engines: tuple[Engine, Engine]) -> None:
    source, target = engines
    going_on, _ = start(source, KINDS["greedy"], 6, salt=b"places")
    parcel = parcel_for(source, target, going_on)
    swapped = replace(
        parcel, data=parcel.data[::-1].copy(), checksums=tuple(reversed(parcel.checksums))
    )
    assert intact(parcel, transfer(target).layout) == 3
    assert intact(swapped, transfer(target).layout) == 0


def test_a_parcel_whose_parts_do_not_fit_together_is_refused(
    engines: tuple[Engine, Engine],
) -> None:
    source, target = engines
    going_on, _ = start(source, KINDS["greedy"], 6, salt=b"parts")
    parcel, layout = parcel_for(source, target, going_on), transfer(target).layout
    assert intact(replace(parcel, data=parcel.data[:2]), layout) == 0
    assert intact(replace(parcel, data=parcel.data[:, 1:]), layout) == 0
    assert intact(replace(parcel, checksums=parcel.checksums[:1]), layout) == 0


def test_pages_of_other_weights_are_neither_given_nor_taken(
    engines: tuple[Engine, Engine],
) -> None:
    cache = CacheConfig(block_size=BLOCK, num_blocks=128)
    other = build_engine(changed("llama"), ModelConfig(max_model_len=128, cache=cache))
    going_on, _ = start(engines[0], KINDS["greedy"], 6, salt=b"layout")
    source, chain = transfer(engines[0]), wanted_pages(going_on, BLOCK)
    assert source.give(transfer(other).layout, chain)[0] == ()
    parcel = pack(source.layout, *source.give(source.layout, chain))
    assert len(parcel.hashes) == 3
    assert unpack(other, going_on, parcel) == 0


def changed(family: str) -> PreTrainedModel:
    """One weight of many is a little larger."""
    model = make(family)
    with torch.no_grad():
        next(iter(model.parameters()))[3, 1] += 1e-3
    return model


def layout(model: PreTrainedModel, block_size: int = BLOCK, deterministic: bool = False) -> Layout:
    cache = CacheConfig(block_size=block_size)
    return layout_of(
        model, check_family(model), ModelConfig(cache=cache, deterministic=deterministic)
    )


def test_a_layout_tells_weights_family_precision_page_size_and_rounding_apart() -> None:
    layouts = [
        layout(make("llama")),
        layout(make("llama"), block_size=8),
        layout(make("llama"), deterministic=True),
        layout(make("llama").to(torch.bfloat16)),
        layout(changed("llama")),
        layout(make("qwen2")),
    ]
    assert len({one.digest for one in layouts}) == len(layouts)
    assert layouts[0] == layout(make("llama"))


def test_an_engine_without_findable_pages_has_none_to_give() -> None:
    assert engine_of("llama", prefix_caching=False).transfer is None


def test_a_full_pool_takes_what_it_has_room_for_and_nothing_from_who_runs(
    engines: tuple[Engine, Engine],
) -> None:
    source, target = engines[0], engine_of("llama", num_blocks=8, max_model_len=32)
    running = request("running", PROMPT[:7], 12)
    expected = words(list(deltas_of(source, replace(assignment(running), salt=b"-"))))
    target.admit(replace(assignment(running), salt=b"-"))
    said = words([delta for _ in range(9) for delta in target.step()])
    assert target.stats().used_pages == 4
    going_on, _ = start(source, request("long", [*PROMPT, *PROMPT], 6), 3, salt=b"full")
    assert unpack(target, going_on, parcel_for(source, target, going_on)) == 4
    assert target.stats().used_pages == 4
    while target.has_work:
        said += words(list(target.step()))
    assert said == expected


def test_what_others_have_brought_meanwhile_is_neither_kept_again_nor_takes_room(
    engines: tuple[Engine, Engine],
) -> None:
    source, target = engines[0], engine_of("llama", num_blocks=5, max_model_len=20)
    going_on, _ = start(source, KINDS["greedy"], 6, salt=b"meanwhile")
    parcel = parcel_for(source, target, going_on)
    assert len(parcel.hashes) == 3
    assert unpack(target, going_on, replace(parcel, data=parcel.data[:2])) == 0
    first = replace(
        parcel,
        hashes=parcel.hashes[:2],
        data=parcel.data[:2],
        checksums=parcel.checksums[:2],
    )
    assert unpack(target, going_on, first) == 2
    assert unpack(target, going_on, parcel) == 1
    stats = target.stats()
    assert (stats.cached_pages, stats.free_pages) == (3, 2)


def test_pages_that_went_to_host_memory_are_given_away_too(
    engines: tuple[Engine, Engine],
) -> None:
    source, target = engine_of("llama", num_blocks=9, max_model_len=36, host_gib=0.01), engines[1]
    going_on, heard = start(source, KINDS["greedy"], 6, salt=b"in the host")
    start(source, request("crowd", list(range(2, 30)), 6), 6, salt=b"crowd")
    assert source.stats().pages_saved >= 3
    parcel = parcel_for(source, target, going_on)
    assert parcel.hashes == wanted_pages(going_on, BLOCK)
    source.verify()
    assert source.stats().used_pages == 0
    assert unpack(target, going_on, parcel) == 3
    rest, _ = computed_by(target, going_on)
    assert heard + rest == start(engines[0], KINDS["greedy"], 14, salt=b"-")[1]


def test_no_more_comes_back_from_host_memory_than_there_is_room_for() -> None:
    source = engine_of("llama", num_blocks=9, max_model_len=36, host_gib=0.01)
    going_on, _ = start(source, KINDS["greedy"], 6, salt=b"in the host")
    source.admit(replace(assignment(request("crowd", list(range(2, 30)), 6)), salt=b"crowd"))
    source.step()
    chain = wanted_pages(going_on, BLOCK)
    room = 9 - source.stats().used_pages
    assert room < len(chain)
    names, data = transfer(source).give(transfer(source).layout, chain)
    assert names == chain[:room]
    assert len(data) == room
    source.verify()


def test_a_request_has_pages_to_be_fetched_when_it_holds_none_of_them() -> None:
    engine = engine_of("llama", num_blocks=12, max_model_len=48, max_num_seqs=1)
    first = replace(assignment(request("first", PROMPT, 6)), salt=b"same")
    list(deltas_of(engine, first))
    engine.admit(replace(assignment(request("runs", [3, 5, 7], 30)), salt=b"other"))
    engine.step()
    engine.admit(replace(assignment(request("waits", PROMPT, 6)), salt=b"same"))
    engine.admit(replace(assignment(request("new", PROMPT, 6)), salt=b"new"))
    assert engine.with_pages() == {"waits"}
    engine.step()
    engine.step()
    assert engine.with_pages() == {"runs", "waits"}


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_where_memory_runs_out_nothing_moves_and_the_books_balance(
    engines: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fails(*_: object) -> None:
        raise error("out of memory")

    source, target = engines
    going_on, _ = start(source, KINDS["greedy"], 6, salt=error.__name__.encode())
    chain, parcel = wanted_pages(going_on, BLOCK), parcel_for(source, target, going_on)
    with monkeypatch.context() as patch:
        patch.setattr(KVCache, "stage", fails)
        assert unpack(target, going_on, parcel) == 0
    with monkeypatch.context() as patch:
        patch.setattr(HostPages, "check_room", fails)
        assert unpack(target, going_on, parcel) == 0
        assert transfer(source).give(transfer(source).layout, chain)[0] == ()
    with monkeypatch.context() as patch:
        patch.setattr(
            KVCache, "gather_bytes", lambda _, pages: fails() if pages else torch.empty(0)
        )
        assert transfer(source).give(transfer(source).layout, chain)[0] == ()
    source.verify()
    assert source.stats().used_pages == target.stats().used_pages == 0
    assert unpack(target, going_on, parcel) == 3


LAYER = {0: LayerShape(1, 2, 2)}
TOKENS = st.lists(st.integers(0, 1), max_size=12)


@settings(max_examples=60)
@given(pages=st.integers(1, 8), held=TOKENS, came=st.lists(TOKENS, max_size=6))
def test_whatever_comes_in_the_books_balance_and_held_pages_stay(
    pages: int, held: list[int], came: list[list[int]]
) -> None:
    pool = BlockPool(pages, 2, prefix_caching=True)
    cache = KVCache(LAYER, pages, 2, torch.float32, torch.device("cpu"))
    into = PageTransfer(pool, cache, HostPages(cache), Layout(b"", PageSize(2, cache.page_bytes)))
    names = page_hashes(held, 2, b"")[:pages]
    table = pool.allocate(len(names)) or []
    for page, name in zip(table, names, strict=True):
        pool.seal(page, name)
    before = cache.read_pages(table)
    for tokens in came:
        chain = page_hashes(tokens, 2, b"")
        lacking = into.lacking(chain)
        data = np.full((len(lacking), cache.page_bytes), len(tokens), np.uint8)
        kept = into.take(chain, lacking, data)
        pool.verify([table])
        assert kept == min(len(lacking), pages - len(table) - _found(chain, lacking, names))
        # What is there is a prefix: the end of a chain is given up first.
        assert len(pool.match(chain)) == len(chain) - len(lacking) + kept
    assert np.array_equal(cache.read_pages(table), before)


def _found(chain: tuple[bytes, ...], lacking: tuple[bytes, ...], held: tuple[bytes, ...]) -> int:
    """Pages of the chain that nobody holds, and that are there."""
    return len(set(chain) - set(lacking) - set(held))
