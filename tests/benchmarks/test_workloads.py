"""Workloads are what their definition says, and the same for everybody who asks for that run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.workloads import SPACE, Words, expand, make_workload, words_of

PIECES = [f"{SPACE}{a}{b}{c}" for a in "abcde" for b in "abcde" for c in "abcde"]
NO_WORDS = ["abc", f"{SPACE}ab", f"{SPACE}Abc", f"{SPACE}ab1", f"{SPACE}abcdefghij", f"{SPACE}äbc"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with a byte-level vocabulary of a few words."""
    vocabulary = {piece: number for number, piece in enumerate(NO_WORDS + PIECES)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=NO_WORDS[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    made = tmp_path_factory.mktemp("model")
    tokenizer.save(str(made / "tokenizer.json"))
    return made


@pytest.fixture(scope="module")
def words(folder: Path) -> Words:
    return words_of(folder)


def test_only_plain_words_after_a_space_are_used(words: Words) -> None:
    assert set(words.texts.values()) == {f" {piece[1:]}" for piece in PIECES}


def test_the_text_of_a_prompt_encodes_to_its_tokens(folder: Path, words: Words) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for prompt in make_workload("W1", 1, words).prompts:
        assert tuple(tokenizer.encode(prompt.text).ids) == prompt.tokens


@pytest.mark.parametrize("name", ["W1", "W2", "W3", "W4", "W5", "C8"])
def test_a_run_is_the_same_each_time_it_is_made(name: str, words: Words) -> None:
    assert make_workload(name, 3, words) == make_workload(name, 3, words)


@pytest.mark.parametrize("name", ["W1", "W2", "W3", "W4", "W5", "C8"])
def test_no_two_prompts_of_two_runs_begin_alike(name: str, words: Words) -> None:
    first, second = (make_workload(name, run, words).prompts for run in (1, 2))
    assert not {one.tokens[:16] for one in first} & {one.tokens[:16] for one in second}


@pytest.mark.parametrize(
    ("name", "concurrency", "count", "prompt", "output"),
    [
        ("W2", 16, 64, 544, 32),
        ("W3", 1, 5, 128, 128),
        ("W4", 8, 8, 1500, 32),
        ("W5", 128, 128, 64, 32),
    ],
)
def test_a_workload_has_the_lengths_of_its_definition(
    name: str, concurrency: int, count: int, prompt: int, output: int, words: Words
) -> None:
    made = make_workload(name, 1, words)
    assert (made.concurrency, len(made.prompts)) == (concurrency, count)
    assert {(len(one.tokens), one.output) for one in made.prompts} == {(prompt, output)}


def test_chat_prompts_have_from_32_to_256_tokens(words: Words) -> None:
    chat = make_workload("W1", 1, words)
    lengths = {len(prompt.tokens) for prompt in chat.prompts}
    assert (chat.concurrency, len(chat.prompts)) == (16, 64)
    assert 32 <= min(lengths) < 64 < 224 < max(lengths) <= 256
    assert {prompt.output for prompt in chat.prompts} == {64}


def test_prompts_of_the_shared_prefix_part_after_512_tokens(words: Words) -> None:
    prompts = make_workload("W2", 1, words).prompts
    for one, other in pairwise(prompts):
        assert one.tokens[:512] == other.tokens[:512]
        assert one.tokens[512:] != other.tokens[512:]


def test_a_warm_up_fills_every_place_once(words: Words) -> None:
    warm_up = make_workload("W1", 0, words).warm_up()
    assert (len(warm_up.prompts), warm_up.concurrency) == (16, 16)


def test_a_sweep_doubles_the_clients_up_to_128() -> None:
    assert expand("W1,sweep") == ("W1", "C1", "C2", "C4", "C8", "C16", "C32", "C64", "C128")


@pytest.mark.parametrize("name", ["W6", "C0", "C", "x", "", "W1 "])
def test_an_unknown_workload_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="workloads are"):
        expand(f"W1,{name}")
