"""A token source that plays a script: the cluster's stand-in at the gateway's outer seam."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable

from cluster.messages import FinishReason, Request, TokenDelta

Script = Callable[[Request], Iterable[TokenDelta | Exception]]


class ScriptedTokens:
    """Plays `script(request)`; remembers what was asked, stopped and cancelled.

    With `before_hold` it plays so many deltas of each request and then waits until it `goes_on`.
    """

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.stopped: list[tuple[str, int]] = []
        self.cancelled: list[str] = []
        self.before_hold: int | None = None
        self.holding = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def generate(self, request: Request) -> AsyncGenerator[TokenDelta, None]:
        self.requests.append(request)
        ended = False
        try:
            for played, event in enumerate(self.script(request)):
                if played == self.before_hold:
                    self.holding.set()
                    await self.goes_on.wait()
                if isinstance(event, Exception):
                    raise event
                if (request.request_id, event.choice) not in self.stopped:
                    yield event
                await asyncio.sleep(0)
            ended = True
        finally:
            if not ended:
                self.cancelled.append(request.request_id)

    def stop(self, request_id: str, choice: int) -> None:
        self.stopped.append((request_id, choice))


def saying(tokens: Iterable[int], finish: FinishReason = FinishReason.STOP) -> Script:
    """Every choice of every request says `tokens`, one a step; cut by `max_tokens`."""
    said = tuple(tokens)

    def script(request: Request) -> Iterable[TokenDelta]:
        for place, token in enumerate(said[: request.stopping.max_tokens]):
            last = place + 1 == min(len(said), request.stopping.max_tokens)
            ends = FinishReason.LENGTH if place + 1 == request.stopping.max_tokens else finish
            for choice in range(request.choices):
                yield TokenDelta(
                    request.request_id, choice, (token,), finish=ends if last else None
                )

    return script
