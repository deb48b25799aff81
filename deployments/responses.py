"""Answers written down as OpenAI's clients read them, whole or as chunks of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from cluster.messages import FinishReason, TokenLogprob
from deployments.generation import Entry, Piece, Usage
from deployments.schemas import ModelCard, UsageBody
from deployments.text import ModelText

_encode = json.JSONEncoder(separators=(",", ":")).encode
LEAST_LOGPROB = -9999.0
"""Stands for impossible tokens, since JSON knows no infinity."""


class Format(Protocol):
    """How one endpoint writes choices down; the rest of an answer is the same for both."""

    object: str
    chunk_object: str
    logprobs: bool

    def choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        """A whole choice."""
        ...

    def chunk(self, piece: Piece, *, first: bool) -> dict[str, Any]:
        """One piece of a choice; `first` of its choice or not."""
        ...


class ChatFormat:
    """/v1/chat/completions."""

    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, text: ModelText, *, logprobs: bool) -> None:
        self._text = text
        self.logprobs = logprobs

    def choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        message = {"role": "assistant", "content": _joined(pieces), "refusal": None}
        scores = self._scores(_entries(pieces))
        finish = pieces[-1].finish
        return {"index": index, "message": message, "logprobs": scores, "finish_reason": finish}

    def chunk(self, piece: Piece, *, first: bool) -> dict[str, Any]:
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        if piece.text or first:
            delta["content"] = piece.text
        return {
            "index": piece.choice,
            "delta": delta,
            "logprobs": self._scores(piece.entries),
            "finish_reason": piece.finish,
        }

    def _scores(self, entries: Iterable[Entry]) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        scores = [entry.score for entry in entries if entry.shown and entry.score]
        return {"content": [self._content(score) for score in scores], "refusal": None}

    def _content(self, score: TokenLogprob) -> dict[str, Any]:
        top = [self._named(token, logprob) for token, logprob in score.top]
        return {**self._named(score.token, score.logprob), "top_logprobs": top}

    def _named(self, token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._text.token_name(token),
            "logprob": max(logprob, LEAST_LOGPROB),
            "bytes": list(self._text.token_bytes(token)),
        }


class CompletionFormat:
    """/v1/completions."""

    object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, text: ModelText, *, logprobs: bool) -> None:
        self._text = text
        self.logprobs = logprobs

    def choice(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        return self._choice(index, _joined(pieces), _entries(pieces), pieces[-1].finish)

    def chunk(self, piece: Piece, *, first: bool) -> dict[str, Any]:
        return self._choice(piece.choice, piece.text, piece.entries, piece.finish)

    def _choice(
        self, index: int, text: str, entries: Iterable[Entry], finish: FinishReason | None
    ) -> dict[str, Any]:
        scores = self._scores(entries) if self.logprobs else None
        return {"index": index, "text": text, "logprobs": scores, "finish_reason": finish}

    def _scores(self, entries: Iterable[Entry]) -> dict[str, Any]:
        shown = [entry for entry in entries if entry.shown]
        return {
            "tokens": [self._text.token_name(entry.token) for entry in shown],
            "token_logprobs": [_logprob(entry.score) for entry in shown],
            "top_logprobs": [self._top(entry.score) for entry in shown],
            "text_offset": [entry.start for entry in shown],
        }

    def _top(self, score: TokenLogprob | None) -> dict[str, float] | None:
        """The alternatives and the token itself, which need not be among them."""
        if score is None:
            return None
        known = (*score.top, (score.token, score.logprob))
        return {self._text.token_name(token): max(value, LEAST_LOGPROB) for token, value in known}


class Envelope:
    """What stands around the choices of one call."""

    def __init__(
        self, call_id: str, created: int, model: str, form: Format, *, streams_usage: bool = False
    ) -> None:
        self._form = form
        self._names = {"id": call_id, "created": created, "model": model}
        self._begun: set[int] = set()
        # All chunks of a call differ in their choices only, so the rest is encoded once.
        self._opening = b"data: " + compact(self._head(form.chunk_object))[:-1] + b',"choices":['
        self._closing = b'],"usage":null}\n\n' if streams_usage else b"]}\n\n"

    def whole(self, pieces: Iterable[Piece], usage: Usage) -> dict[str, Any]:
        """The answer that is not streamed."""
        by_choice: dict[int, list[Piece]] = {}
        for piece in pieces:
            by_choice.setdefault(piece.choice, []).append(piece)
        choices = [self._form.choice(index, by_choice[index]) for index in sorted(by_choice)]
        return {**self._head(self._form.object), "choices": choices, "usage": usage_body(usage)}

    def event(self, piece: Piece) -> bytes:
        """The stream's event for a piece; nothing where the piece has nothing to tell."""
        first = piece.choice not in self._begun
        if not (first or piece.text or piece.finish or (self._form.logprobs and piece.entries)):
            return b""
        self._begun.add(piece.choice)
        return self._opening + compact(self._form.chunk(piece, first=first)) + self._closing

    def usage_event(self, usage: Usage) -> bytes:
        """The last chunk, where usage was asked for: no choices."""
        return self._opening + b'],"usage":' + compact(usage_body(usage)) + b"}\n\n"

    def _head(self, kind: str) -> dict[str, Any]:
        return {**self._names, "object": kind, "system_fingerprint": None}


def usage_body(usage: Usage) -> UsageBody:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def model_card(name: str, created: int) -> ModelCard:
    return {"id": name, "object": "model", "created": created, "owned_by": "shoal"}


def compact(body: Any) -> bytes:
    """JSON without spaces, in ASCII: some clients break lines at Unicode's own separators."""
    return _encode(body).encode("ascii")


def _logprob(score: TokenLogprob | None) -> float | None:
    return None if score is None else max(score.logprob, LEAST_LOGPROB)


def _joined(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _entries(pieces: Iterable[Piece]) -> list[Entry]:
    return [entry for piece in pieces for entry in piece.entries]
