"""What happens to the scheduler (events), and what it has others told (instructions).

None of them crosses a process; they are messages because each request makes some of them, and a
message is made more quickly than another frozen dataclass.
"""

from __future__ import annotations

from cluster.messages import Decision, ShardRef, Submission
from cluster.reports import ReportAck, ShardReport
from cluster.wire import message


@message
class Submitted:
    """A router asks for a lease; asking again for the same request changes nothing."""

    submission: Submission


@message
class Withdrawn:
    """The lease is no longer wanted, whether it has been granted or not: so `router` says, and any
    other that waits for it does so in vain."""

    request_id: str
    router: str = ""


@message
class RouterGone:
    """A router will not listen any more: what it still waits for is withdrawn."""

    router: str


@message
class Audited:
    """A router says what it waits for, all of it."""

    router: str
    awaited: frozenset[str]


@message
class DoorGone:
    """A door is dead: nobody would use a lease of its requests, nor uses those that it has."""

    door: str


@message
class Reported:
    """A shard says what happened there."""

    report: ShardReport


@message
class ShardGone:
    """Somebody saw this life of the shard end."""

    shard: ShardRef


@message
class Ticked:
    """Time has passed."""


Event = Submitted | Withdrawn | RouterGone | DoorGone | Audited | Reported | ShardGone | Ticked


@message
class Tell:
    """Tell `router` the decision; `again`: an audit found it made, and not heard of."""

    router: str
    decision: Decision
    again: bool = False


@message
class Ask:
    """Have `router` submit the request again: nothing is known of it."""

    router: str
    request_id: str


@message
class Acknowledge:
    """Answer the shard's report."""

    shard: ShardRef
    ack: ReportAck


Instruction = Tell | Ask | Acknowledge
