"""Spellings are found, sealed and unsealed, and what is not sealed can be told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deployments.spellings import Spellings

MARKS = Spellings(["<|end|>", "<|end|>!", "|>go", "[x]", "#"])
PIECES = ["<|end|>", "<|end|>!", "|>go", "[x]", "#", "<", "|", "end", ">", "!", "[", " ", "é", "\n"]
texts = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


@given(texts)
def test_a_sealed_text_holds_none_and_unsealed_is_what_it_was(text: str) -> None:
    sealed = MARKS.seal(text)
    assert not MARKS.are_in(sealed)
    assert len(sealed) == len(text)
    assert MARKS.unseal(sealed) == text


@given(texts, texts)
def test_nothing_behind_a_sealed_text_completes_one(text: str, more: str) -> None:
    assert MARKS.found(MARKS.seal(text) + MARKS.seal(more)) == set()


@given(texts)
def test_nothing_is_spelled_by_what_remains_of_a_text_with_every_beginning_sealed(
    text: str,
) -> None:
    sealed = MARKS.seal(text, every=True)
    assert not MARKS.first_in(sealed)
    assert MARKS.unseal(sealed) == text


def test_with_every_beginning_sealed_what_is_spared_stays() -> None:
    assert MARKS.seal("[x][", spared={"[x]"}, every=True).startswith("[x]")


def test_empty_ones_spell_nothing() -> None:
    assert Spellings(["", "#"]).found("a#") == {"#"}


def test_places_are_counted_not_what_begins_there() -> None:
    assert MARKS.count("<|end|>! # <") == 2


@given(texts)
def test_where_there_is_none_nothing_is_sealed(text: str) -> None:
    assert (MARKS.seal(text) != text) == MARKS.are_in(text)


def test_those_that_overlap_are_all_found() -> None:
    assert MARKS.found("<|end|>!go") == {"<|end|>", "<|end|>!"}
    assert MARKS.found("<|end|>go") == {"<|end|>", "|>go"}


def test_a_spared_one_stays_as_it_is() -> None:
    sealed = MARKS.seal("[x] and #", spared={"[x]"})
    assert sealed.startswith("[x] and ")
    assert MARKS.found(sealed) == {"[x]"}
    assert not MARKS.are_in(sealed, spared={"[x]"})


def test_the_longest_of_those_at_one_place_is_replaced() -> None:
    names = {"<|end|>": "1", "<|end|>!": "2", "#": "3"}
    text = "<|end|> <|end|>! " + MARKS.seal("#<|end|>")
    replaced, count = MARKS.replaced(text, names)
    assert (MARKS.unseal(replaced), count) == ("1 2 #<|end|>", 2)


def test_a_set_of_none_leaves_all_as_it_is() -> None:
    none = Spellings([])
    assert (none.seal("<|end|>"), none.are_in("<"), none.found("#")) == ("<|end|>", False, set())
    assert none.replaced("#", {}) == ("#", 0)


def test_private_characters_of_the_last_plane_confuse() -> None:
    assert Spellings.are_confused_by("a\U00100000")
    assert not Spellings.are_confused_by("a\U000f0001\ue000")
    assert not Spellings.are_confused_by("")
