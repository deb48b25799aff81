"""Stop strings and incremental text, whatever the tokens and the steps cut."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from cluster.messages import FinishReason, TokenDelta
from deployments.generation import ChoiceText, Piece
from deployments.stops import StopScan, compile_stops
from deployments.text import ModelText, TextDecoder

FEW = st.text(alphabet="abé", min_size=1, max_size=6)


def cut(text: str, stops: list[str]) -> str:
    """`text` before the stop string that is complete first; the longest of those."""
    found = [(text.find(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
    if not found:
        return text
    end, length = min(found)
    return text[: end + length]


@st.composite
def pieces_of(draw: st.DrawFn, text: str) -> list[str]:
    places = st.lists(st.integers(0, len(text)), max_size=6)
    cuts = sorted({0, len(text), *draw(places)})
    return [text[start:end] for start, end in pairwise(cuts)]


@given(st.data(), st.text(alphabet="abé", max_size=30), st.lists(FEW, min_size=1, max_size=4))
def test_text_is_cut_where_a_stop_is_first_complete_and_nothing_leaks_before(
    data: st.DataObject, text: str, stops: list[str]
) -> None:
    scan, shown, expected = StopScan(compile_stops(stops)), "", cut(text, stops)
    for piece in data.draw(pieces_of(text)):
        shown += scan.feed(piece)
        assert expected.startswith(shown), "the client has seen a part of a stop string"
        if scan.stopped:
            break
    if not scan.stopped:
        shown += scan.flush()
    assert shown == expected
    assert scan.stopped == any(stop in text for stop in stops)


def test_only_what_may_become_a_stop_is_withheld() -> None:
    scan = StopScan(compile_stops(["abac"]))
    assert [scan.feed(char) for char in "xababx"] == ["x", "", "", "", "ab", "abx"]


def test_a_stop_that_contains_itself_is_found_after_a_false_start() -> None:
    scan = StopScan(compile_stops(["aab"]))
    assert scan.feed("aaab") == "a"
    assert scan.stopped


def deltas(tokens: list[int], steps: list[int], finish: FinishReason) -> list[TokenDelta]:
    ends = sorted({len(tokens), *(step for step in steps if step < len(tokens))} - {0})
    return [
        TokenDelta("r", 0, tuple(tokens[start:end]), finish=finish if end == len(tokens) else None)
        for start, end in pairwise([0, *ends])
    ]


def play(choice: ChoiceText, steps: list[TokenDelta]) -> list[Piece]:
    pieces = []
    for delta in steps:
        pieces.append(choice.feed(delta))
        if choice.finish is not None:
            break
    return pieces


@cache
def tokenizer_of(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(folder)


TOKENS = st.lists(st.integers(3, 362), min_size=1, max_size=24)
STEPS = st.lists(st.integers(1, 24), max_size=6)


@given(tokens=TOKENS, steps=STEPS)
def test_pieces_join_to_what_the_tokenizer_decodes_at_once(
    folder: Path, text: ModelText, tokens: list[int], steps: list[int]
) -> None:
    choice = ChoiceText(text, (), 0, 0)
    pieces = play(choice, deltas(tokens, steps, FinishReason.LENGTH))
    whole = tokenizer_of(folder).decode(tokens, skip_special_tokens=True)
    assert "".join(piece.text for piece in pieces) == whole
    told = [entry.token for piece in pieces for entry in piece.entries]
    assert told == tokens
    assert choice.generated == len(tokens)


@given(tokens=TOKENS, steps=STEPS, stops=st.lists(st.text(min_size=1, max_size=3), max_size=4))
def test_stops_cut_the_decoded_text_whatever_the_steps(
    text: ModelText, tokens: list[int], steps: list[int], stops: list[str]
) -> None:
    whole = text.decode(tokens)
    stops = [stop for stop in [*stops, whole[2:5], whole[-2:]] if stop]
    expected = cut(whole, stops)
    choice = ChoiceText(text, compile_stops(stops), 0, 0)
    shown = ""
    for piece in play(choice, deltas(tokens, steps, FinishReason.LENGTH)):
        shown += piece.text
        assert expected.startswith(shown)
        spelled = b"".join(text.token_bytes(entry.token) for entry in piece.entries)
        assert len(spelled.decode(errors="ignore")) <= len(expected)
    assert shown == expected
    assert choice.finish == (FinishReason.STOP if expected != whole else FinishReason.LENGTH)


@pytest.mark.parametrize("word", ["é", "€", "🐟", "魚"])
def test_a_character_waits_until_its_bytes_are_whole(text: ModelText, word: str) -> None:
    decoder = TextDecoder(text)
    tokens = text.encode_now(word)
    shown = [decoder.feed(token) for token in tokens]
    assert shown == [""] * (len(tokens) - 1) + [word]


def test_half_a_character_at_the_end_becomes_a_replacement(text: ModelText) -> None:
    half = text.encode_now("é")[0]
    choice = ChoiceText(text, (), 0, 0)
    assert choice.feed(TokenDelta("r", 0, (half,), finish=FinishReason.LENGTH)).text == "\ufffd"


def test_tokens_after_a_stop_string_are_neither_shown_nor_counted(text: ModelText) -> None:
    tokens = text.encode_now("One fish, two fish")
    choice = ChoiceText(text, compile_stops([","]), 0, 0)
    piece = choice.feed(TokenDelta("r", 0, tuple(tokens)))
    assert piece.text == "One fish"
    assert piece.met_stop
    spent = text.encode_now("One fish,")
    assert choice.generated == len(spent)


def test_stop_strings_wait_for_min_tokens(text: ModelText) -> None:
    tokens = text.encode_now("One, two, red")
    least = len(text.encode_now("One, two"))
    choice = ChoiceText(text, compile_stops([","]), least, 0)
    assert choice.feed(TokenDelta("r", 0, tuple(tokens))).text == "One, two"


def test_the_token_that_ends_a_choice_is_not_shown(text: ModelText) -> None:
    word = text.encode_now("fish")[-1]
    choice = ChoiceText(text, (), 0, 0)
    piece = choice.feed(TokenDelta("r", 0, (word, word), finish=FinishReason.STOP))
    assert piece.text == text.decode([word])
    assert [entry.shown for entry in piece.entries] == [True, False]
