"""What a door hears of one request: the deltas of its choices, or why it ended early."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from actors.outbox import Delta
from cluster import errors
from cluster.errors import FaultError, RequestError, ShoalError
from cluster.messages import Assignment, RequestFailed, TokenDelta

ERRORS: dict[str, type[ShoalError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, (FaultError, RequestError))
}
"""What a RequestFailed may stand for, by the name it gives."""


class TokenStream(AsyncIterator[TokenDelta]):
    """What the shard says of one request, until each choice has ended.

    Iteration raises the FaultError or RequestError that ended the request early. Whoever stops
    listening before the end calls `cancel`, since nobody else will.
    """

    def __init__(
        self,
        assignment: Assignment,
        cancel: Callable[[str, int | None], bool],
        send: Callable[[str], None] = lambda _request_id: None,
    ) -> None:
        """`cancel` has the shard end a choice, or all; False where it never heard of them. `send`
        lets go of what was held back."""
        self.request_id = assignment.request.request_id
        self._cancel = cancel
        self._send = send
        self._awaited = set(assignment.outputs())
        self._ended = asyncio.Event()
        self._arrived: asyncio.Queue[Delta | None] = asyncio.Queue()

    async def __anext__(self) -> TokenDelta:
        while self._awaited or not self._arrived.empty():
            delta = await self._arrived.get()
            if isinstance(delta, RequestFailed):
                raise ERRORS.get(delta.kind, FaultError)(delta.message)
            if delta is not None:
                return delta
        raise StopAsyncIteration

    @property
    def is_over(self) -> bool:
        """Whether nothing more can arrive."""
        return not self._awaited

    async def ended(self) -> None:
        """Wait until nothing more can arrive."""
        await self._ended.wait()

    def put(self, delta: Delta) -> None:
        """For the channel: here is more. What is of a cancelled choice is dropped."""
        if isinstance(delta, RequestFailed):
            self._awaited.clear()
        elif delta.choice not in self._awaited:
            return
        elif delta.finish is not None:
            self._awaited.discard(delta.choice)
        self._arrived.put_nowait(delta)
        self._note_end()

    def send(self) -> None:
        """The request, which was held back, is to leave for its shard."""
        self._send(self.request_id)

    def cancel(self, choice: int | None = None) -> bool:
        """End one choice, or all; its pages are free within one step. Twice is as good as once.

        False where the request had not left for its shard, which will never report its end.
        """
        ended = self._awaited & ({choice} if choice is not None else self._awaited)
        if not ended:
            return True
        self._awaited -= ended
        self._arrived.put_nowait(None)
        self._note_end()
        # The last choice takes the request with it, wherever the others have ended.
        return self._cancel(self.request_id, choice if self._awaited else None)

    def _note_end(self) -> None:
        if self.is_over:
            self._ended.set()
