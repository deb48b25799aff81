"""What happens to the scheduler (events), and what it has others told (instructions)."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.messages import Decision, ShardRef, Submission
from cluster.reports import ReportAck, ShardReport


@dataclass(frozen=True, slots=True)
class Submitted:
    """A router asks for a lease; asking again for the same request changes nothing."""

    submission: Submission


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The lease is no longer wanted, whether it has been granted or not: so `router` says, and any
    other that waits for it does so in vain."""

    request_id: str
    router: str = ""


@dataclass(frozen=True, slots=True)
class RouterGone:
    """A router will not listen any more: what it still waits for is withdrawn."""

    router: str


@dataclass(frozen=True, slots=True)
class Audited:
    """A router says what it waits for, all of it."""

    router: str
    awaited: frozenset[str]


@dataclass(frozen=True, slots=True)
class DoorGone:
    """A door is dead: nobody would use a lease of its requests, nor uses those that it has."""

    door: str


@dataclass(frozen=True, slots=True)
class Reported:
    """A shard says what happened there."""

    report: ShardReport


@dataclass(frozen=True, slots=True)
class ShardGone:
    """Somebody saw this life of the shard end."""

    shard: ShardRef


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed."""


Event = Submitted | Withdrawn | RouterGone | DoorGone | Audited | Reported | ShardGone | Ticked


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell `router` the decision; `again`: an audit found it made, and not heard of."""

    router: str
    decision: Decision
    again: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """Have `router` submit the request again: nothing is known of it."""

    router: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Answer the shard's report."""

    shard: ShardRef
    ack: ReportAck


Instruction = Tell | Ask | Acknowledge
