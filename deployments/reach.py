"""How much text one token can stand for: what a text needs at least, before it is encoded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tokenizers import pre_tokenizers

COMPOSED = 4
"""Code points that Unicode's composition makes one of at most: the longest canonical decomposition
of a code point, as of U+1F82 (Unicode 15, UAX 15)."""

COMPOSING = {"NFC", "NFKC"}
KEEPING_NORMALIZERS = {*COMPOSING, "NFD", "NFKD", "Lowercase", "Prepend", "Replace", "Sequence"}
KEEPING_SPLITTERS = {"ByteLevel", "Digits", "Metaspace", "Punctuation", "Split", "Sequence"}


def longest_reach(backend: Any) -> int | None:
    """Characters that one token of `backend`, a `tokenizers.Tokenizer`, stands for at most.

    So n characters are at least n / reach tokens. None where nothing certain is known: where a
    step may drop text, or one token may stand for any number of unknown characters.
    """
    normalizers = list(_steps(backend.normalizer, "normalizers"))
    splitters = list(_steps(backend.pre_tokenizer, "pretokenizers"))
    vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    keeps_text = (
        all(map(_normalizer_keeps, normalizers))
        and all(map(_splitter_keeps, splitters))
        and not any(added.lstrip or added.rstrip for added in _added(backend))
    )
    if not keeps_text or not _knows_every_byte(backend, splitters, vocabulary):
        return None
    composed = COMPOSED if any(step["type"] in COMPOSING for step in normalizers) else 1
    return composed * max(map(len, vocabulary))


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


def _knows_every_byte(
    backend: Any, splitters: list[dict[str, Any]], vocabulary: dict[str, int]
) -> bool:
    """Whether no character is unknown, as its bytes have tokens."""
    if type(backend.model).__name__ != "BPE":
        return False
    if any(step["type"] == "ByteLevel" for step in splitters):
        return vocabulary.keys() >= set(pre_tokenizers.ByteLevel.alphabet())
    spelled = {f"<0x{byte:02X}>" for byte in range(256)}
    return bool(backend.model.byte_fallback) and vocabulary.keys() >= spelled
