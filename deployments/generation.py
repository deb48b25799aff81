"""From the tokens of a request to the text of its choices, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Protocol

from cluster.errors import ShardLost
from cluster.messages import FinishReason, Request, TokenDelta, TokenLogprob
from deployments.stops import Pattern, StopScan
from deployments.text import ModelText, TextDecoder


class TokenSource(Protocol):
    """Where tokens come from: the seam to the cluster."""

    def generate(self, request: Request) -> AsyncGenerator[TokenDelta, None]:
        """Deltas of all choices, in order within each, until each has finished or was stopped.

        Closing it cancels the request. Raises ShoalErrors.
        """
        ...

    def stop(self, request_id: str, choice: int) -> None:
        """This choice needs no more tokens: its text has met a stop string."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One token beside the text: `start` is where its characters begin in the choice's text.

    Not `shown`: the token that ended the choice, which is no part of the text.
    """

    token: int
    start: int
    score: TokenLogprob | None = None
    shown: bool = True


@dataclass(frozen=True, slots=True)
class Piece:
    """What became known of one choice: text ready to be shown, and the tokens that spell it.

    `met_stop`: the text ended by a stop string, which only the door can see.
    """

    choice: int
    text: str
    entries: tuple[Entry, ...] = ()
    finish: FinishReason | None = None
    met_stop: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call: each prompt counted once, the output of all choices."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass(slots=True)
class _Withheld:
    """An entry on its way; `end` is where its characters end, once they are whole."""

    entry: Entry
    end: int | None


class ChoiceText:
    """One choice on its way to the client.

    Text is withheld while it may turn into a stop string, and a token until all its text is out.
    """

    def __init__(
        self, text: ModelText, patterns: tuple[Pattern, ...], min_tokens: int, start: int
    ) -> None:
        self.generated = 0
        self.finish: FinishReason | None = None
        self._decoder = TextDecoder(text)
        self._scan = StopScan(patterns)
        self._min_tokens = min_tokens
        self._decoded = self._shown = start
        self._waiting: list[_Withheld] = []

    def feed(self, delta: TokenDelta) -> Piece:
        """Take the delta's tokens up to the one that ends the choice."""
        shown = "".join(self._texts(delta))
        if self.finish is None and delta.finish is not None:
            shown += self._end(delta.finish)
        self._shown += len(shown)
        entries = tuple(self._release())
        return Piece(delta.choice, shown, entries, self.finish, self._scan.stopped)

    def _texts(self, delta: TokenDelta) -> Iterator[str]:
        last = len(delta.tokens) - 1 if delta.finish is FinishReason.STOP else None
        for index, (token, score) in enumerate(zip_longest(delta.tokens, delta.logprobs)):
            self.generated += 1
            yield self._show(token, score, ends=index == last)
            if self._scan.stopped:
                self.finish = FinishReason.STOP
                return

    def _show(self, token: int, score: TokenLogprob | None, *, ends: bool) -> str:
        start = self._decoded
        chars = "" if ends else self._decoder.feed(token)
        self._decoded += len(chars)
        self._waiting.append(_Withheld(Entry(token, start, score, shown=not ends), None))
        if not self._decoder.waits:
            self._complete_entries()
        return chars if self.generated <= self._min_tokens else self._scan.feed(chars)

    def _complete_entries(self) -> None:
        for held in reversed(self._waiting):
            if held.end is not None:
                return
            held.end = self._decoded

    def _end(self, finish: FinishReason) -> str:
        """What was still withheld, as the choice ends by a token or by its length."""
        rest = self._decoder.flush()
        self._decoded += len(rest)
        self._complete_entries()
        shown = self._scan.feed(rest)
        self.finish = FinishReason.STOP if self._scan.stopped else finish
        return shown + self._scan.flush()

    def _release(self) -> Iterator[Entry]:
        out = 0
        for held in self._waiting:
            if held.end is None or held.end > self._shown:
                break
            out += 1
            yield held.entry
        del self._waiting[:out]


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """A prompt that is given back before the text of each choice."""

    text: str
    tokens: tuple[int, ...]
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, text: ModelText, tokens: Sequence[int], original: str | None) -> EchoedPrompt:
        """`original` is the prompt as the client wrote it, if it did."""
        decoder = TextDecoder(text)
        lengths = tuple(len(decoder.feed(token)) for token in tokens)
        shown = text.decode(tokens) if original is None else original
        return cls(shown, tuple(tokens), lengths)

    def entries(self, scores: Sequence[TokenLogprob | None]) -> Iterator[Entry]:
        start = 0
        for token, length, score in zip(self.tokens, self.lengths, scores, strict=False):
            yield Entry(token, start, score)
            start += length


@dataclass(slots=True)
class RequestText:
    """All choices of one request: deltas in, pieces and usage out."""

    request: Request
    text: ModelText
    patterns: tuple[Pattern, ...] = ()
    echo: EchoedPrompt | None = None
    cached_tokens: int = 0
    _choices: dict[int, ChoiceText] = field(default_factory=dict)
    _early: list[TokenDelta] = field(default_factory=list)
    _scores: tuple[TokenLogprob | None, ...] | None = None

    def feed(self, delta: TokenDelta) -> list[Piece]:
        """The pieces that `delta` makes known.

        The prompt's scores come with choice 0; where they are given back, others wait for it.
        """
        if self._scores is None:
            if delta.choice != 0 and self.request.sampling.prompt_logprobs is not None:
                self._early.append(delta)
                return []
            if delta.choice == 0:
                self._scores = delta.prompt_logprobs
                self.cached_tokens = delta.cached_tokens
                early, self._early = self._early, []
                return [piece for known in (delta, *early) for piece in self._feed_choice(known)]
        return self._feed_choice(delta)

    def usage(self) -> Usage:
        generated = sum(choice.generated for choice in self._choices.values())
        return Usage(len(self.request.prompt), generated, self.cached_tokens)

    def unfinished(self) -> list[int]:
        return [
            index
            for index in range(self.request.choices)
            if index not in self._choices or self._choices[index].finish is None
        ]

    def _feed_choice(self, delta: TokenDelta) -> list[Piece]:
        choice = self._choices.get(delta.choice)
        if choice is None:
            return [self._begin(delta)]
        return [choice.feed(delta)] if choice.finish is None else []

    def _begin(self, delta: TokenDelta) -> Piece:
        start = len(self.echo.text) if self.echo else 0
        minimum = self.request.stopping.min_tokens
        choice = ChoiceText(self.text, self.patterns, minimum, start)
        self._choices[delta.choice] = choice
        piece = choice.feed(delta)
        return self._after_prompt(piece, self.echo) if self.echo else piece

    def _after_prompt(self, piece: Piece, echo: EchoedPrompt) -> Piece:
        before = tuple(echo.entries(self._scores or ()))
        return replace(piece, text=echo.text + piece.text, entries=before + piece.entries)


async def read_pieces(source: TokenSource, reading: RequestText) -> AsyncGenerator[Piece, None]:
    """The pieces of one request as they become known; closing it cancels the request.

    Raises ShoalErrors; ShardLost where the tokens end before each choice has.
    """
    request = reading.request
    async with aclosing(source.generate(request)) as deltas:
        async for delta in deltas:
            for piece in reading.feed(delta):
                if piece.met_stop:
                    source.stop(request.request_id, piece.choice)
                yield piece
    if reading.unfinished():
        raise ShardLost(f"the tokens ended before choices {reading.unfinished()} had")
