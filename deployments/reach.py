"""How much text one token can stand for: what a text needs at least, before it is encoded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from deployments.alphabet import byte_alphabet

COMPOSED = 4
"""Code points that Unicode's composition makes one of at most: the longest canonical decomposition
of a code point, as of U+1F82 (Unicode 15, UAX 15)."""

COMPOSING = {"NFC", "NFKC"}
KEEPING_NORMALIZERS = {*COMPOSING, "NFD", "NFKD", "Lowercase", "Prepend", "Replace", "Sequence"}
KEEPING_SPLITTERS = {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "Sequence"}

ASCII = set(range(0x80))
CONTINUING = set(range(0x80, 0xC0))
"""In UTF-8, the bytes after the first of a character."""


@dataclass(frozen=True, slots=True)
class Reach:
    """One token stands for `characters` at most; those in `lost` have none and vanish."""

    characters: int
    lost: frozenset[str]

    @classmethod
    def of(cls, backend: Any) -> Reach | None:
        """That of a `tokenizers.Tokenizer`, or None where nothing certain is known.

        A step may drop text, or one token stand for any number of unknown characters.
        """
        normalizers = list(_steps(backend.normalizer, "normalizers"))
        splitters = list(_steps(backend.pre_tokenizer, "pretokenizers"))
        vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        lost = _lost(backend, splitters, vocabulary.keys())
        keeps_text = (
            all(map(_normalizer_keeps, normalizers))
            and all(map(_splitter_keeps, splitters))
            and not any(added.lstrip or added.rstrip for added in _added(backend))
        )
        if lost is None or not keeps_text:
            return None
        composed = COMPOSED if any(step["type"] in COMPOSING for step in normalizers) else 1
        return cls(composed * max(map(len, vocabulary)), lost)

    def fewest_tokens(self, text: str) -> int:
        """No fewer tokens can spell `text`; found in a fraction of the time of encoding it."""
        kept = len(text) - sum(map(text.count, self.lost))
        return -(-kept // self.characters)


def _steps(stage: Any, inner: str) -> Iterator[dict[str, Any]]:
    """A stage of the tokenizer and the stages inside it, as it would be saved."""
    if stage is None:
        return
    waiting = [json.loads(stage.__getstate__())]
    while waiting:
        step = waiting.pop()
        yield step
        waiting += step.get(inner, ())


def _added(backend: Any) -> list[Any]:
    return list(backend.get_added_tokens_decoder().values())


def _normalizer_keeps(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        found = step["pattern"].get("String")
        return found is not None and len(step["content"]) >= len(found)
    return step["type"] in KEEPING_NORMALIZERS


def _splitter_keeps(step: dict[str, Any]) -> bool:
    return step["type"] in KEEPING_SPLITTERS and step.get("behavior") != "Removed"


def _lost(
    backend: Any, splitters: list[dict[str, Any]], vocabulary: Set[str]
) -> frozenset[str] | None:
    """Characters of whose bytes none has a token; None where others could vanish too."""
    if type(backend.model).__name__ != "BPE":
        return None
    if any(step["type"] == "ByteLevel" for step in splitters):
        missing = {byte[0] for spelt, byte in byte_alphabet().items() if spelt not in vocabulary}
        # Any character beyond ASCII has a byte of these, and if only that is left of it.
        return None if missing & CONTINUING else frozenset(map(chr, missing & ASCII))
    spelled = {f"<0x{byte:02X}>" for byte in range(256)}
    return frozenset() if backend.model.byte_fallback and vocabulary >= spelled else None
