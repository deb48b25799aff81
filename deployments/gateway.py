"""The door: one class that answers HTTP routes and Python callers by the same steps."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace
from random import Random

from cluster.config import ShoalConfig
from cluster.explanations import Explanation, Forecast
from cluster.messages import FinishReason, Submission
from cluster.stats import ClusterStats
from cluster.topology import Topology
from deployments.auth import ApiKeys
from deployments.deadlines import within
from deployments.ending import REFUSED, Ending
from deployments.generation import Piece, TokenSource, Usage, read_pieces
from deployments.handle import GeneratedChoice, GenerateRequest, Generation, GenerationDelta
from deployments.intake import Call, Intake
from deployments.merging import merge
from deployments.readiness import Readiness
from deployments.served import ServedModel


@dataclass(frozen=True, slots=True)
class Outside:
    """What the gateway is given of the world: the cluster, the clock and chance.

    `readiness` tells whether requests would be answered now; `stats` reads the cluster's books,
    `topology` asks its nodes what they are; `explain` and `forecast` ask the scheduler why; `now`
    is seconds since the epoch.
    """

    source: TokenSource
    readiness: Callable[[], Awaitable[Readiness]]
    stats: Callable[[], Awaitable[ClusterStats]]
    topology: Callable[[], Awaitable[Topology]]
    explain: Callable[[str], Awaitable[Explanation | None]]
    forecast: Callable[[Submission], Awaitable[Forecast]]
    now: Callable[[], float]
    random: Random


class Gateway:
    """Validated calls in, text out. Holds no state of a call beyond the call."""

    def __init__(
        self, config: ShoalConfig, models: Iterable[ServedModel], keys: ApiKeys, outside: Outside
    ) -> None:
        self.config = config
        self.keys = keys
        self.outside = outside
        self.intake = Intake(config, models, self._living, outside.random)
        self.started = int(outside.now())
        self._ending = Ending()

    async def generate(self, request: GenerateRequest) -> Generation:
        """Answer at once and whole. Raises ShoalErrors."""
        call = await self.intake.generate(request)
        deltas: dict[int, list[GenerationDelta]] = {}
        async with aclosing(self.pieces(call)) as pieces:
            async for piece in pieces:
                deltas.setdefault(piece.choice, []).append(_delta(piece, request))
        choices = tuple(_choice(deltas[index]) for index in sorted(deltas))
        return Generation(call.call_id, call.model.name, choices, usage_of(call))

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[GenerationDelta, None]:
        """Answer piece by piece; the last delta carries the usage. Raises ShoalErrors."""
        call = await self.intake.generate(request)
        unfinished = call.choices
        async with aclosing(self.pieces(call)) as pieces:
            async for piece in pieces:
                unfinished -= piece.finish is not None
                delta = _delta(piece, request)
                yield delta if unfinished else replace(delta, usage=usage_of(call))

    def pieces(self, call: Call) -> AsyncGenerator[Piece, None]:
        """The pieces of all prompts of a call; closing it cancels what still runs.

        Raises ShoalErrors; DeadlineExceeded where the call takes longer than it allows itself,
        ShuttingDown where it takes longer than `leave` allows.
        """
        pieces = merge([self._numbered(call, index) for index in range(len(call.readings))])
        if call.deadline_s is not None:
            pieces = within(call.deadline_s, pieces)
        return self._ending.through(pieces)

    async def leave(self, within_s: float) -> None:
        """Begin no answer any more, and return once those that run have ended: by themselves, or
        with an error after `within_s`."""
        await self._ending.begin(within_s)

    async def readiness(self) -> Readiness:
        """Whether requests would be answered now."""
        if self._ending.has_begun:
            return Readiness((REFUSED,))
        return await self.outside.readiness()

    async def _living(self, model: str) -> int:
        stats = await self.outside.stats()
        return sum(shard.model == model for shard in stats.scheduler.shards)

    async def _numbered(self, call: Call, prompt: int) -> AsyncGenerator[Piece, None]:
        """The pieces of one prompt, whose choices count on from those of the prompts before."""
        before = prompt * call.choices_each
        reading = call.readings[prompt]
        async with aclosing(read_pieces(self.outside.source, reading)) as pieces:
            async for piece in pieces:
                yield replace(piece, choice=before + piece.choice) if before else piece


def usage_of(call: Call) -> Usage:
    """What the call has used so far."""
    return sum((reading.usage() for reading in call.readings), Usage())


def _delta(piece: Piece, request: GenerateRequest) -> GenerationDelta:
    tokens = tuple(entry.token for entry in piece.entries)
    scores = tuple(entry.score for entry in piece.entries)
    logprobs = None if request.logprobs is None else scores
    return GenerationDelta(piece.choice, piece.text, tokens, logprobs, piece.finish)


def _choice(deltas: list[GenerationDelta]) -> GeneratedChoice:
    scores = [delta.logprobs for delta in deltas if delta.logprobs is not None]
    return GeneratedChoice(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=tuple(score for part in scores for score in part) if scores else None,
        finish_reason=deltas[-1].finish_reason or FinishReason.STOP,
    )
