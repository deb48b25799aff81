"""What a shard has for one door, kept until the door says it has it.

Tokens of one choice that the door has not fetched are joined, so that a door which is slower than
the shard is behind by one message and its choices, never by all the tokens of a crowd: whoever
asks for few tokens need not wait behind the many of others.
"""

from __future__ import annotations

from dataclasses import replace

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
        self._pending: dict[tuple[str, int | None], Delta] = {}
        self.backlog = 0
        """Deltas that were put since a batch was last made; joined or not."""

    def put(self, delta: Delta) -> None:
        self.backlog += 1
        if isinstance(delta, RequestFailed):
            self._pending[delta.request_id, None] = delta
            return
        key = (delta.request_id, delta.choice)
        before = self._pending.get(key)
        self._pending[key] = _joined(before, delta) if isinstance(before, TokenDelta) else delta

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
        self._sent = DeltaBatch(acknowledged + 1, tuple(self._pending.values()))
        self._pending.clear()
        self.backlog = 0
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


def _joined(one: TokenDelta, other: TokenDelta) -> TokenDelta:
    """Two deltas of one choice as one; what comes only with the first is the first's."""
    tokens, logprobs = one.tokens + other.tokens, one.logprobs + other.logprobs
    return replace(one, tokens=tokens, logprobs=logprobs, finish=other.finish)
