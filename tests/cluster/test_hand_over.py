"""Which pages a request wants of the shard that it leaves, and when to fetch them pays."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.blocks import page_hashes
from cluster.hand_over import (
    FORGET_S,
    LONGEST_S,
    SHORTEST_S,
    TRIAL_BYTES,
    Link,
    PageSize,
    Worth,
    wanted_pages,
)
from cluster.messages import Assignment, Emitted
from tests.cluster.paged_memory import assignment

BLOCK = 4
SALT = b"tenant"
PAGE = PageSize(16, 368_640)

tokens = st.lists(st.integers(0, 3), max_size=20).map(tuple)
seconds = st.floats(0.001, 100.0)
counts = st.integers(1, 10_000)


def going_on(prompt: tuple[int, ...], *outputs: tuple[int, ...]) -> Assignment:
    emitted = tuple(Emitted(choice, output) for choice, output in enumerate(outputs))
    return replace(assignment("r", prompt, choices=max(1, len(outputs))), emitted=emitted)


@given(tokens, st.lists(tokens, max_size=3))
def test_wanted_are_the_full_pages_of_every_choice_but_for_its_last_token(
    prompt: tuple[int, ...], outputs: list[tuple[int, ...]]
) -> None:
    prompt = (1, *prompt)
    wanted = wanted_pages(going_on(prompt, *outputs), BLOCK)
    due = [page_hashes((*prompt, *output)[:-1], BLOCK, SALT) for output in outputs or [()]]
    assert set(wanted) == {one for chain in due for one in chain}
    assert len(set(wanted)) == len(wanted)
    for chain in due:
        assert sorted(chain, key=wanted.index) == list(chain)


def test_pages_are_of_no_use_to_who_is_owed_log_probabilities_of_the_prompt() -> None:
    asked = assignment("r", tuple(range(20)), prompt_logprobs=1)
    assert wanted_pages(asked, BLOCK) == ()
    has_them = replace(asked, emitted=(Emitted(0, (5,)),))
    assert len(wanted_pages(has_them, BLOCK)) == 5


def test_before_anything_was_measured_pages_are_worth_fetching_and_none_is_not() -> None:
    assert Worth().pays(2, PAGE, now=0.0)
    assert not Worth().pays(0, PAGE, now=0.0)


def prefilling(tokens_per_s: float) -> Worth:
    worth = Worth()
    worth.prefilled(1000, 1000 / tokens_per_s)
    return worth


def test_however_fast_prompts_are_computed_a_link_is_tried_and_with_a_small_parcel() -> None:
    worth = prefilling(1e6)
    assert worth.pays(1000, PAGE, now=0.0)
    assert worth.at_once(32 * 2**20, PAGE, now=0.0) == TRIAL_BYTES // PAGE.nbytes


@given(st.floats(1e9, 1e11))
def test_one_trial_tells_a_fast_link_from_the_guess(bytes_per_s: float) -> None:
    computed_per_s = 0.3 * bytes_per_s / PAGE.nbytes * PAGE.tokens
    worth = prefilling(min(computed_per_s, 1.2e9 / PAGE.nbytes * PAGE.tokens))
    nbytes = worth.at_once(32 * 2**20, PAGE, now=0.0) * PAGE.nbytes
    worth.fetched(nbytes, nbytes / bytes_per_s, now=0.1)
    assert worth.pays(1000, PAGE, now=0.2)
    assert worth.at_once(32 * 2**20, PAGE, now=0.2) == 32 * 2**20 // PAGE.nbytes


def test_a_trial_that_hangs_is_one_and_the_next_is_made_after_a_while() -> None:
    worth = prefilling(1e5)
    worth.gave_up(TRIAL_BYTES, after_s=0.5, now=1.0)
    assert not worth.pays(1000, PAGE, now=FORGET_S)
    assert worth.pays(1000, PAGE, now=FORGET_S + 2.0)


def test_who_gives_up_early_has_learned_nothing() -> None:
    worth = prefilling(1e5)
    worth.gave_up(TRIAL_BYTES, after_s=0.001, now=1.0)
    assert worth.pays(1000, PAGE, now=2.0)


def measured(bytes_per_s: float, trip_s: float, tokens_per_s: float, now: float = 0.0) -> Worth:
    worth = Worth()
    worth.prefilled(1000, 1000 / tokens_per_s)
    for nbytes in (PAGE.nbytes, 32 * PAGE.nbytes) * 20:
        worth.fetched(nbytes, trip_s + nbytes / bytes_per_s, now)
    return worth


speeds = st.floats(1e5, 1e11)
prefills = st.floats(10.0, 1e5)
trips = st.floats(1e-4, 0.5)


@given(counts, speeds, trips, prefills)
def test_it_pays_where_fetching_is_quicker_than_computing(
    pages: int, bytes_per_s: float, trip_s: float, tokens_per_s: float
) -> None:
    fetch_s = trip_s + pages * PAGE.nbytes / bytes_per_s
    compute_s = pages * PAGE.tokens / tokens_per_s
    pays = measured(bytes_per_s, trip_s, tokens_per_s).pays(pages, PAGE, now=1.0)
    if not 0.9 < fetch_s / compute_s < 1.1:
        assert pays == (fetch_s < compute_s)


@given(st.lists(st.tuples(st.integers(0, 10**8), st.floats(0.0, 100.0)), max_size=30), counts)
def test_whatever_was_measured_more_bytes_take_no_less_time(
    fetches: list[tuple[int, float]], nbytes: int
) -> None:
    link = Link()
    for size, took_s in fetches * 10:
        link.record(size, took_s)
    assert 0.0 <= link.seconds(nbytes) <= link.seconds(2 * nbytes)


def test_a_round_trip_that_is_slow_says_nothing_of_large_fetches() -> None:
    link = Link()
    for _ in range(3):
        link.record(1000, 0.05)
    assert link.seconds(64 * 2**20) < 0.3


def test_a_bad_link_is_tried_again_after_a_while_and_then_measured_anew() -> None:
    worth = measured(1e5, 0.1, 1000.0)
    assert not worth.pays(100, PAGE, now=FORGET_S)
    assert worth.pays(100, PAGE, now=FORGET_S + 1.0)
    worth.fetched(100 * PAGE.nbytes, 0.1, now=FORGET_S + 2.0)
    assert worth.pays(100, PAGE, now=FORGET_S + 3.0)


@settings(max_examples=50)
@given(counts, seconds)
def test_nobody_waits_much_longer_than_computing_takes(pages: int, compute_s: float) -> None:
    worth = Worth()
    worth.prefilled(pages * PAGE.tokens, compute_s)
    patience_s = worth.patience_s(pages, PAGE)
    assert SHORTEST_S <= patience_s <= LONGEST_S
    assert patience_s <= max(SHORTEST_S, 2.001 * compute_s)
