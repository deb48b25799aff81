"""The door between a scripted router and scripted shards: leases, losses, and explicit ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing

import pytest

from actors.channel import TokenStream
from actors.outbox import Delta
from cluster.blocks import page_hashes
from cluster.config import CacheConfig, ModelConfig
from cluster.errors import (
    CapacityError,
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    NotReady,
    QueueFull,
    ShardLost,
)
from cluster.messages import (
    Assignment,
    Decision,
    FinishReason,
    Lease,
    Reason,
    Refusal,
    RefusalKind,
    Request,
    RequestFailed,
    Sampling,
    ShardRef,
    Stopping,
    Submission,
    TokenDelta,
)
from deployments.auth import tenant_salt
from deployments.door import PLACEMENT_ATTEMPTS, Door

MODEL = ModelConfig(name="m", cache=CacheConfig(block_size=4))
SHARD = ShardRef("m/shard-0", "m", "m/shard-0", "life-1")
STOP = FinishReason.STOP


class Router:
    """Grants every request a lease, unless it was told to refuse."""

    def __init__(self) -> None:
        self.refusal: RefusalKind | None = None
        self.asked: list[Submission] = []
        self.withdrawn: list[str] = []

    async def place(self, submission: Submission) -> Decision:
        self.asked.append(submission)
        if self.refusal is not None:
            return Refusal(submission.request_id, self.refusal, "the reason", 7.0)
        return Lease(submission.request_id, 1, SHARD, 0, Reason(0.0, ()))

    def withdraw(self, request_id: str) -> None:
        self.withdrawn.append(request_id)


class Shards:
    """Plays `script(request)` into the stream of each request; remembers what was cancelled."""

    def __init__(self, script: Callable[[Request], Iterable[Delta]]) -> None:
        self.script = script
        self.assigned: list[Assignment] = []
        self.cancelled: list[tuple[str, int | None]] = []
        self.streams: list[TokenStream] = []
        self.opened = asyncio.Event()
        self.reached = True

    def open(self, assignment: Assignment) -> TokenStream:
        self.assigned.append(assignment)
        stream = TokenStream(assignment, self.cancel)
        self.streams.append(stream)
        self.opened.set()
        for delta in self.script(assignment.request):
            stream.put(delta)
        return stream

    def cancel(self, request_id: str, choice: int | None) -> bool:
        self.cancelled.append((request_id, choice))
        return self.reached

    async def close(self) -> None:
        for stream in self.streams:
            stream.cancel()


def request(choices: int = 1) -> Request:
    prompt = tuple(range(10))
    return Request("r", "m", "acme", "P1", prompt, Sampling(), Stopping(max_tokens=5), choices)


def token(asked: Request, choice: int = 0, finish: FinishReason | None = None) -> TokenDelta:
    return TokenDelta(asked.request_id, choice, (65,), finish=finish)


def lost(asked: Request) -> RequestFailed:
    return RequestFailed(asked.request_id, ShardLost.__name__, "it died")


def make_door(router: Router, shards: Shards) -> Door:
    return Door(router, shards, [MODEL], replace_delay_s=0.0)


async def test_the_scheduler_learns_the_measure_and_the_shard_the_words() -> None:
    router, shards = Router(), Shards(lambda asked: [token(asked, finish=STOP)])
    deltas = [delta async for delta in make_door(router, shards).generate(request())]
    [submission], [assignment] = router.asked, shards.assigned
    salt = tenant_salt("acme")
    assert submission.page_hashes == page_hashes(range(10), 4, salt)
    assert (submission.prompt_tokens, submission.max_tokens, submission.choices) == (10, 5, 1)
    assert assignment.request == request()
    assert (assignment.salt, assignment.lease.request_id) == (salt, "r")
    assert deltas == [TokenDelta("r", 0, (65,), finish=STOP)]
    assert (shards.cancelled, router.withdrawn) == ([], [])


async def test_a_shard_lost_before_the_first_token_is_replaced_under_another_id() -> None:
    router = Router()
    shards = Shards(lambda a: [lost(a) if "~" not in a.request_id else token(a, 0, STOP)])
    deltas = [delta async for delta in make_door(router, shards).generate(request())]
    assert [submission.request_id for submission in router.asked] == ["r", "r~1"]
    assert router.withdrawn == ["r"]
    assert [delta.tokens for delta in deltas] == [(65,)]


async def test_a_shard_lost_after_the_first_token_is_a_fault() -> None:
    router, shards = Router(), Shards(lambda asked: [token(asked), lost(asked)])
    deltas = make_door(router, shards).generate(request())
    await anext(deltas)
    with pytest.raises(ShardLost, match="it died"):
        await anext(deltas)
    assert len(router.asked) == 1


async def test_shards_that_go_on_dying_end_the_attempts_and_every_lease_goes_back() -> None:
    router, shards = Router(), Shards(lambda asked: [lost(asked)])
    with pytest.raises(ShardLost, match="it died"):
        await anext(make_door(router, shards).generate(request()))
    assert len(router.asked) == PLACEMENT_ATTEMPTS
    assert router.withdrawn == [submission.request_id for submission in router.asked]


async def test_what_a_shard_says_of_the_request_itself_is_not_tried_elsewhere() -> None:
    failure = RequestFailed("r", ContextTooLong.__name__, "too long")
    router, shards = Router(), Shards(lambda asked: [failure])
    with pytest.raises(ContextTooLong, match="too long"):
        await anext(make_door(router, shards).generate(request()))
    assert len(router.asked) == 1
    assert router.withdrawn == ["r"]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (RefusalKind.QUEUE_FULL, QueueFull),
        (RefusalKind.NOT_READY, NotReady),
        (RefusalKind.DEADLINE, DeadlineExceeded),
    ],
)
async def test_a_refusal_says_when_to_come_back(
    kind: RefusalKind, error: type[CapacityError]
) -> None:
    router, shards = Router(), Shards(lambda asked: [])
    router.refusal = kind
    with pytest.raises(error, match="the reason") as refused:
        await anext(make_door(router, shards).generate(request()))
    assert refused.value.retry_after_s == 7.0
    assert shards.assigned == []


async def test_what_never_fits_is_the_callers_to_change() -> None:
    router, shards = Router(), Shards(lambda asked: [])
    router.refusal = RefusalKind.NEVER_FITS
    with pytest.raises(InvalidRequest) as refused:
        await anext(make_door(router, shards).generate(request()))
    assert refused.value.param == "max_tokens"


async def test_whoever_stops_listening_has_the_shard_told() -> None:
    router, shards = Router(), Shards(lambda asked: [token(asked)])
    async with aclosing(make_door(router, shards).generate(request())) as deltas:
        await anext(deltas)
        assert shards.cancelled == []
    assert shards.cancelled == [("r", None)]
    assert router.withdrawn == []


async def test_a_lease_whose_shard_was_never_reached_is_given_back() -> None:
    router, shards = Router(), Shards(lambda asked: [])
    shards.reached = False
    reading = asyncio.create_task(anext(make_door(router, shards).generate(request())))
    await shards.opened.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert router.withdrawn == ["r"]


async def test_a_choice_that_met_its_stop_ends_and_the_others_go_on() -> None:
    router = Router()
    shards = Shards(lambda asked: [token(asked, 0), token(asked, 1)])
    door = make_door(router, shards)
    async with aclosing(door.generate(request(choices=2))) as deltas:
        await anext(deltas)
        await anext(deltas)
        door.stop("r", 1)
        assert shards.cancelled == [("r", 1)]
        shards.streams[0].put(token(request(), 0, STOP))
        assert [delta.choice async for delta in deltas] == [0]
    assert shards.cancelled == [("r", 1)]


async def test_a_door_that_closes_ends_whoever_waits_for_a_first_token() -> None:
    router, shards = Router(), Shards(lambda asked: [])
    door = make_door(router, shards)

    async def read() -> list[TokenDelta]:
        return [delta async for delta in door.generate(request())]

    reading = asyncio.create_task(read())
    await shards.opened.wait()
    await door.close()
    assert await reading == []
    assert shards.cancelled == [("r", None)]
