"""What a shard has for one door, kept until the door says it has it."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.errors import ShardLost
from cluster.messages import DeltaBatch, RequestFailed, TokenDelta

Delta = TokenDelta | RequestFailed


class Outbox:
    """Numbers what it is given into batches, at most one of them unacknowledged.

    Asking again with the same acknowledgement yields the same batch, so a reply lost on the way
    neither loses nor repeats a token.
    """

    def __init__(self) -> None:
        self._sent = DeltaBatch(0, ())
        self._heard = 0
        self._pending: list[Delta] = []

    def put(self, deltas: Iterable[Delta]) -> None:
        self._pending.extend(deltas)

    def take(self, acknowledged: int) -> DeltaBatch:
        """The batch after `acknowledged`; empty, and numbered `acknowledged`, where there is none.

        Raises ShardLost where the door speaks of batches that this outbox never sent, or of ones
        long past: it has outlived an outbox that was dropped.
        """
        if acknowledged == self._sent.number - 1:
            return self._sent
        if acknowledged != self._sent.number:
            raise ShardLost(
                f"batch {acknowledged} is unknown here, {self._sent.number} is the last"
            )
        if not self._pending:
            return DeltaBatch(acknowledged, ())
        self._sent = DeltaBatch(acknowledged + 1, tuple(self._pending))
        self._pending.clear()
        return self._sent

    def acknowledge(self, number: int) -> None:
        """The door has batch `number`."""
        self._heard = number

    @property
    def is_empty(self) -> bool:
        """Whether the door has all there was."""
        return not self._pending and self._heard == self._sent.number

    def has_news(self, acknowledged: int) -> bool:
        """Whether `take` would not be empty."""
        return bool(self._pending) or acknowledged != self._sent.number

    @property
    def backlog(self) -> int:
        """Deltas not yet taken."""
        return len(self._pending)
