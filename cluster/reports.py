"""What a shard and the scheduler tell each other: events, room, and what the shard holds."""

from __future__ import annotations

from cluster.messages import PageHash, ShardRef
from cluster.wire import message


@message
class ShardCapacity:
    """What a shard can hold; fixed for its life."""

    block_size: int
    total_pages: int
    max_num_seqs: int
    max_model_len: int


@message
class HeldRequest:
    """A request that a shard holds, for a scheduler that has to rebuild its books."""

    request_id: str
    prompt_tokens: int
    computed_tokens: int
    choices: int
    tenant: str = ""
    sla: str = ""


@message
class Prefilling:
    """Prompt tokens computed, and the seconds that the steps took which computed them.

    Steps in which prompts stood back for the pace of streams are left out: what a shard does not
    do for the sake of others says nothing of how fast it is.
    """

    tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Prefilling) -> Prefilling:
        return Prefilling(self.tokens + other.tokens, self.seconds + other.seconds)


NO_PREFILLING = Prefilling()
"""No prompt was computed, or none at full speed."""


@message
class ShardReport:
    """A shard's events since report `number - 1`, oldest first, and where it stands now.

    A `full` report replaces all the scheduler knew of the shard: `held` and `stored` are then
    complete, but for what `started` and `ended` since `held` was drawn up. `free_pages` counts
    evictable cached pages too. `started` names requests whose prompt is computed, `ended` those
    whose every choice is over, and `produced` the output tokens of each of these, where the shard
    counts them. `prefilling`: how fast prompts were computed. `stored` and `removed` are net: a
    page is in one of them at most. One that is `leaving` finishes what it holds and takes no more;
    what it does not finish is `displaced`: over here, to go on elsewhere.
    A report whose ack was lost is sent again with its number, or its successor is full.
    """

    shard: ShardRef
    number: int
    capacity: ShardCapacity
    free_pages: int
    started: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    stored: tuple[PageHash, ...] = ()
    removed: tuple[PageHash, ...] = ()
    full: bool = False
    held: tuple[HeldRequest, ...] = ()
    produced: tuple[int, ...] = ()
    leaving: bool = False
    displaced: tuple[str, ...] = ()
    prefilling: Prefilling = NO_PREFILLING


@message
class ReportAck:
    """The scheduler's answer: its epoch, and whether the next report has to be a full one."""

    epoch: int
    resync: bool
