"""The workloads every server gets: prompts of exact length, made from a seed.

A prompt is a row of words that are one token each after a space, so its token ids and its text are
the same prompt, and a server that takes only one of them still does the same work. Each run has its
own seed: no prefix of it was seen before, so a prefix cache starts cold in every run.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

SPACE = "\u0120"
"""How byte-level vocabularies write the space before a word."""

WORD_LENGTHS = range(3, 10)
NAME = re.compile(r"W[1-5]|C[1-9]\d*")
SWEEP = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Words:
    """Lower-case words that are one token each, in the order of `tokens`."""

    tokens: tuple[int, ...]
    texts: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one request asks: continue `tokens`, which `text` encodes to, by `output` tokens."""

    tokens: tuple[int, ...]
    text: str
    output: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts in order of arrival, at most `concurrency` of them in flight."""

    name: str
    run: int
    concurrency: int
    prompts: tuple[Prompt, ...]

    def warm_up(self) -> Workload:
        """As many prompts as fill every place once."""
        return Workload(self.name, self.run, self.concurrency, self.prompts[: self.concurrency])


Draw = Callable[[int], tuple[int, ...]]
"""Draws so many tokens."""


def words_of(folder: Path) -> Words:
    """The words of the model's vocabulary that prompts are made of."""
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    texts = {token: f" {piece[1:]}" for piece, token in vocabulary.items() if _is_word(piece)}
    return Words(tuple(sorted(texts)), texts)


def make_workload(name: str, run: int, words: Words) -> Workload:
    """Run `run` of workload `name`: W1 to W5, or C<n> for `n` clients at once."""
    rng = random.Random(f"{name} {run}")

    def draw(count: int) -> tuple[int, ...]:
        return tuple(rng.choices(words.tokens, k=count))

    concurrency, asked = _recipe(name, rng, draw)
    prompts = tuple(Prompt(tokens, _text(tokens, words), output) for tokens, output in asked)
    return Workload(name, run, concurrency, prompts)


def expand(names: str) -> tuple[str, ...]:
    """The workloads that a comma-separated list means; `sweep` is C1 to C128.

    Raises ValueError for a name that is none.
    """
    sweep = ",".join(f"C{clients}" for clients in SWEEP)
    expanded = tuple(names.replace("sweep", sweep).split(","))
    for name in expanded:
        if not NAME.fullmatch(name):
            raise ValueError(f"workloads are W1 to W5, C<clients> and sweep; got {name!r}")
    return expanded


Asked = Sequence[tuple[tuple[int, ...], int]]


def _recipe(name: str, rng: random.Random, draw: Draw) -> tuple[int, Asked]:
    """Clients at once, and the prompts with how many tokens each asks for."""
    match name:
        case "W1":  # chat
            return 16, [(draw(rng.randint(32, 256)), 64) for _ in range(64)]
        case "W2":  # one system prompt before every question
            shared = draw(512)
            return 16, [(shared + draw(32), 32) for _ in range(64)]
        case "W3":  # one reader
            return 1, [(draw(128), 128) for _ in range(5)]
        case "W4":  # documents
            return 8, [(draw(1500), 32) for _ in range(8)]
        case "W5":  # a burst
            return 128, [(draw(64), 32) for _ in range(128)]
    clients = int(name.removeprefix("C"))
    return clients, [(draw(rng.randint(32, 256)), 64) for _ in range(max(4, 2 * clients))]


def _is_word(piece: str) -> bool:
    word = piece[1:]
    letters = word.isascii() and word.isalpha() and word.islower()
    return piece.startswith(SPACE) and letters and len(word) in WORD_LENGTHS


def _text(tokens: tuple[int, ...], words: Words) -> str:
    return "".join(words.texts[token] for token in tokens)
