"""The error tree of Shoal, sorted by who has to act.

    ShoalError
    +-- RequestError            the caller must change the request
    |   +-- InvalidRequest          a field is wrong; names it
    |   |   +-- UnsupportedField    a field Shoal does not serve; names it
    |   |   +-- ContextTooLong      prompt (and output) exceed the context; says both lengths
    |   +-- NotAuthenticated        no key, or a key nobody knows
    |   +-- NotRemembered           nothing is known any more of what was asked for
    |   +-- ModelNotFound           no model of that name is served
    |   +-- RequestTooLarge         the body exceeds the limit
    +-- CapacityError           the caller should come back later; carries retry_after_s
    |   +-- QueueFull               the bounded queue is full
    |   +-- BudgetExhausted         the tenant has used up a budget; the message names it
    |   +-- NotReady                no shard serves the model at this moment
    |   +-- DeadlineExceeded        it could not be served in time
    |   +-- ShuttingDown            the server ends
    +-- OperatorError           the operator must change configuration, weights or machines
    |   +-- ConfigError             a field of the configuration is wrong; gives its path
    |   +-- ModelUnavailable        the weights cannot be had; says what was tried
    |   +-- UnsupportedModel        the family cannot be served exactly; names it
    |   +-- Unschedulable           no node has what a shard asks for; says what is missing
    |   +-- DeviceUnavailable       a GPU or MIG slice cannot be had or changed; says what to do
    +-- FaultError              ours: a part of the system failed
        +-- ShardLost               the shard died with the sequence on it
        |   +-- StepFailed              in a step that computed the sequence
        +-- DeviceFault             a device reports an error, or computes nothing of any use
        +-- Displaced               the shard let the request go; it goes on elsewhere
        |   +-- Drained                 and gives away, for a moment, what it has computed of it
        +-- PoisonRequest           shards died of it; names the request
        |   +-- NotFinite               its numbers come out infinite, or as none
        +-- SchedulerLost           the scheduler could not be reached
        +-- StaleLease              the lease belongs to another life of the shard
        +-- IllegalTransition       a state change that the table does not allow
        +-- LedgerBroken            a ledger does not add up

Every error survives pickling with all its fields, since it crosses processes: keyword fields are
kept in `__dict__`, and `__reduce__` rebuilds from them without calling `__init__`.
"""

from __future__ import annotations

from typing import Any


class ShoalError(Exception):
    """The root: `message` is fit to be shown to whoever has to act."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[ShoalError], args: tuple[Any, ...], fields: dict[str, Any]) -> ShoalError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class RequestError(ShoalError):
    """The caller must change the request."""


class InvalidRequest(RequestError):
    """A field is wrong; `param` names it as the caller wrote it."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnsupportedField(InvalidRequest):
    """A field that Shoal does not serve, refused rather than ignored."""


class ContextTooLong(InvalidRequest):
    """The prompt, or the prompt with the output asked for, does not fit the model's context."""


class NotAuthenticated(RequestError):
    """No key, or a key nobody knows."""


class NotRemembered(RequestError):
    """Nothing is known, or nothing any more, of what was asked for."""


class ModelNotFound(RequestError):
    """No model of that name is served."""


class RequestTooLarge(RequestError):
    """The body exceeds the configured limit."""


class CapacityError(ShoalError):
    """The caller should come back in `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFull(CapacityError):
    """The bounded queue of the class is full."""


class BudgetExhausted(CapacityError):
    """The tenant has used up a budget, which the message names."""


class NotReady(CapacityError):
    """No shard serves the model at this moment."""


class DeadlineExceeded(CapacityError):
    """The request could not be served before its deadline."""


class ShuttingDown(CapacityError):
    """The server ends; another one, or the next, may answer."""


class OperatorError(ShoalError):
    """The operator must change configuration, weights or machines."""


class ConfigError(OperatorError):
    """A field of the configuration is wrong; `path` is where, dotted."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class ModelUnavailable(OperatorError):
    """The weights cannot be had; the message says what was tried and what to do."""


class UnsupportedModel(OperatorError):
    """The model family cannot be served exactly, so it is not served at all."""


class Unschedulable(OperatorError):
    """No node offers what a shard asks for; the message says what is missing."""


class DeviceUnavailable(OperatorError):
    """A GPU or MIG slice cannot be had, or cannot be cut; the message says what to do."""


class FaultError(ShoalError):
    """A part of the system failed; nobody outside has to change anything."""


class ShardLost(FaultError):
    """The shard died, or stopped answering, with the sequence on it."""


class StepFailed(ShardLost):
    """A step that computed the sequence failed, and the shard with it."""


class DeviceFault(FaultError):
    """A GPU reported an error that its memory or its results may not have survived; names it. Or
    what a device computes is no use."""


class Displaced(FaultError):
    """The shard let the request go, or never had it, and did not die of it."""


class Drained(Displaced):
    """The shard leaves. For a moment it still gives away the pages of the request."""


class PoisonRequest(FaultError):
    """Shards died of this request whenever they ran it, so no further one is risked for it."""


class NotFinite(PoisonRequest):
    """The model's numbers for this request overflow or are none, so it has no next token. Another
    shard of the same weights would compute the same, so none is asked."""


class SchedulerLost(FaultError):
    """The scheduler could not be reached within the time allowed."""


class StaleLease(FaultError):
    """The lease belongs to another life of the shard."""


class IllegalTransition(FaultError):
    """A state change that the table does not allow; nothing was changed."""


class LedgerBroken(FaultError):
    """A ledger does not add up; the message carries the two sums."""
