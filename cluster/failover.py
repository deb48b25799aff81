"""What a request needs to go on when its shard is lost: what is out of it, and whether to go on.

Pure: times are readings of one clock, in seconds, and chance is passed in.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cluster.errors import (
    CapacityError,
    DeadlineExceeded,
    FaultError,
    PoisonRequest,
    ShardLost,
    ShoalError,
    StepFailed,
)
from cluster.fleet_config import FailoverConfig
from cluster.messages import Emitted, TokenDelta

_ATTEMPT = "~"

FAILED_STEPS = 2
"""Steps in a row that may fail with a request in them before it is refused: a shard that can say
whom it computed leaves no doubt who was there."""

SILENT_DEATHS = 3
"""The same for shards that went without a word. Something from outside may have killed them, so one
more has to die, each after the first while the request is tried by itself and after a while without
it."""


def attempt_id(request_id: str, number: int) -> str:
    """What the request is called as it is asked for again, for the `number`th time."""
    return f"{request_id}{_ATTEMPT}{number}" if number else request_id


def original_id(request_id: str) -> str:
    """What the request was called when it was asked for first."""
    return request_id.partition(_ATTEMPT)[0]


class Transcript:
    """What the client of a request has of each choice; prompt and transcript are all its state."""

    def __init__(self, choices: int) -> None:
        self._open: dict[int, list[int]] = {choice: [] for choice in range(choices)}

    def __bool__(self) -> bool:
        """Whether any choice goes on."""
        return bool(self._open)

    def __len__(self) -> int:
        """How many choices go on."""
        return len(self._open)

    def enter(self, delta: TokenDelta) -> bool:
        """Whether the delta is news: of a choice that is over, nothing is."""
        if delta.choice not in self._open:
            return False
        self._open[delta.choice] += delta.tokens
        if delta.finish is not None:
            self.close(delta.choice)
        return True

    def close(self, choice: int) -> None:
        """The choice is over, if it was not."""
        self._open.pop(choice, None)

    def emitted(self) -> tuple[Emitted, ...]:
        """The choices that go on, and what is out of each."""
        return tuple(Emitted(choice, tuple(tokens)) for choice, tokens in self._open.items())

    def longest(self) -> tuple[int, ...]:
        """The output of the choice that has most of those that go on."""
        longest = max(self._open.values(), key=len)
        return tuple(longest)


class Recovery:
    """Whether one request is tried again, when, and with how much caution.

    The rule. Only what is the system's fault, and not proven to be due to the request itself
    (`soundness`), is tried again, after a pause that doubles, for `patience_s` at most from one
    token to the next. A death tells against a request that was in the step that failed, or that had
    had no token from the shard that went without a word; a token from the next shard clears it.
    Whoever has one against it is a suspect, and is tried apart from other suspects. `FAILED_STEPS`
    or `SILENT_DEATHS` against it in a row, or `max_deaths` in all, and it is refused. After a
    silent one, the next shard has to live for a while with the request not sent yet: one that dies
    by then, as all do in a storm, did not die of it.
    """

    def __init__(
        self,
        request_id: str,
        config: FailoverConfig,
        uniform: Callable[[], float],
        deadline_at: float = math.inf,
    ) -> None:
        """`uniform` gives numbers from [0, 1)."""
        self._request_id = request_id
        self._config = config
        self._uniform = uniform
        self._deadline_at = deadline_at
        self._admitted = False
        self._proven = False
        self._attempts = 0
        self._failing_since: float | None = None
        self._deaths = 0
        self._failed_steps = 0
        self._silent_deaths = 0

    @property
    def is_admitted(self) -> bool:
        """Whether a shard was promised to it before."""
        return self._admitted

    @property
    def is_suspect(self) -> bool:
        return self._failed_steps + self._silent_deaths > 0

    def watch_s(self, now: float) -> float:
        """Seconds that a shard has to live, once it is leased, before the request is sent there: as
        many times `watch_s` as went silent under it; none where its deadline would pass."""
        watch_s = self._config.watch_s * self._silent_deaths
        return watch_s if now + watch_s < self._deadline_at else 0.0

    def deadline_s(self, now: float) -> float | None:
        """Seconds that are left until the first token is late, None where it cannot be."""
        if math.isinf(self._deadline_at):
            return None
        return max(0.0, self._deadline_at - now)

    def leased(self) -> None:
        """A shard has been promised: from here on the request is accepted, and has to be served."""
        self._admitted, self._proven = True, False

    def progressed(self) -> bool:
        """A token came; whether it was the first of its lease. The deadline is that of the very
        first, and met now."""
        if self._proven:
            return False
        self._proven = True
        self._deadline_at = math.inf
        self._attempts = self._failed_steps = self._silent_deaths = 0
        self._failing_since = None
        return True

    def pause_s(self, error: ShoalError, now: float) -> float:
        """Seconds to wait before the next lease is asked for, after `error`.

        Raises `error` where trying again is of no use or has been enough, DeadlineExceeded where
        the pause would outlast the deadline, PoisonRequest where shards died of the request.
        """
        self._accuse(error)
        if self._failing_since is None:
            self._failing_since = now
        waited_s = now - self._failing_since
        if not self._is_passing(error) or waited_s >= self._config.patience_s:
            raise error
        pause_s = self._backoff_s()
        if now + pause_s >= self._deadline_at:
            raise DeadlineExceeded("its deadline passed while a shard was replaced", 1.0) from error
        return pause_s

    def _accuse(self, error: ShoalError) -> None:
        if not isinstance(error, ShardLost):
            return
        self._deaths += 1
        if isinstance(error, StepFailed):
            self._failed_steps += 1
        elif not self._proven:
            self._silent_deaths += 1
        if (
            self._failed_steps >= FAILED_STEPS
            or self._failed_steps + self._silent_deaths >= SILENT_DEATHS
            or self._deaths >= self._config.max_deaths
        ):
            raise PoisonRequest(
                f"request {self._request_id} is not tried again: {self._deaths} shards died while"
                f" they ran it, the last one thus: {error.message}"
            ) from error

    def _is_passing(self, error: ShoalError) -> bool:
        """Whether it may be otherwise soon. An accepted request waits where a new one is refused,
        but for a deadline."""
        if isinstance(error, CapacityError):
            return self._admitted and not isinstance(error, DeadlineExceeded)
        return isinstance(error, FaultError) and not isinstance(error, PoisonRequest)

    def _backoff_s(self) -> float:
        """Between half of and the whole `first_delay_s * 2^attempts`, which is bounded."""
        longest = self._config.longest_delay_s
        delay = min(self._config.first_delay_s * 2.0 ** min(self._attempts, 32), longest)
        self._attempts += 1
        return delay * (0.5 + 0.5 * self._uniform())
