"""The door between a scripted router and scripted shards: leases, losses, and explicit ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from actors.outbox import Delta
from actors.token_stream import TokenStream
from cluster.blocks import page_hashes
from cluster.config import CacheConfig, ModelConfig, ShoalConfig
from cluster.errors import (
    CapacityError,
    ContextTooLong,
    DeadlineExceeded,
    Displaced,
    Drained,
    FaultError,
    InvalidRequest,
    NotReady,
    PoisonRequest,
    QueueFull,
    ShardLost,
    StaleLease,
    StepFailed,
)
from cluster.fleet_config import FailoverConfig, FleetConfig
from cluster.messages import (
    Assignment,
    Decision,
    Emitted,
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
from deployments.door import Door

MODEL = ModelConfig(name="m", cache=CacheConfig(block_size=4))
SHARD = ShardRef("m/shard-0", "m", "m/shard-0", "life-1")
STOP = FinishReason.STOP


class Router:
    """Grants every request a lease, unless it was told to refuse."""

    def __init__(self) -> None:
        self.refusals: list[RefusalKind] = []
        self.asked: list[Submission] = []
        self.withdrawn: list[str] = []
        self.shards: list[ShardRef] = []

    async def place(self, submission: Submission) -> Decision:
        self.asked.append(submission)
        if self.refusals:
            return Refusal(submission.request_id, self.refusals.pop(0), "the reason", 7.0)
        shard = self.shards.pop(0) if self.shards else SHARD
        return Lease(submission.request_id, 1, shard, 0, Reason(0.0, ()))

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
        self.held: list[str] = []
        self.sent: list[str] = []
        self.left = asyncio.Event()

    def open(self, assignment: Assignment, held: bool = False) -> TokenStream:
        self.assigned.append(assignment)
        stream = TokenStream(assignment, self.cancel, lambda _: self._play(assignment, stream))
        self.streams.append(stream)
        self.opened.set()
        if held:
            self.held.append(stream.request_id)
        else:
            self._play(assignment, stream)
        return stream

    def _play(self, assignment: Assignment, stream: TokenStream) -> None:
        self.sent.append(stream.request_id)
        self.left.set()
        for delta in self.script(assignment.request):
            stream.put(delta)

    async def has_opened(self, count: int) -> None:
        while len(self.streams) < count:
            self.opened.clear()
            await self.opened.wait()

    async def has_sent(self, count: int) -> None:
        while len(self.sent) < count:
            self.left.clear()
            await self.left.wait()

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


def failed(asked: Request) -> RequestFailed:
    return RequestFailed(asked.request_id, StepFailed.__name__, "its step failed")


def make_door(router: Router, shards: Shards, **failover: float) -> Door:
    quick: dict[str, Any] = {"first_delay_s": 1e-6, "longest_delay_s": 1e-6, "watch_s": 1e-6}
    quick |= failover
    config = ShoalConfig(models=(MODEL,), failover=FailoverConfig(**quick))
    return Door(router, shards, config, uniform=lambda: 0.0)


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


async def test_a_lost_shard_is_replaced_under_another_id_with_what_is_out() -> None:
    router = Router()
    shards = Shards(
        lambda a: (
            [token(a, 0), token(a, 1), token(a, 1), lost(a)]
            if "~" not in a.request_id
            else [token(a, 1, STOP), token(a, 0, STOP)]
        )
    )
    door = make_door(router, shards)
    deltas = [delta async for delta in door.generate(request(choices=2))]
    assert [submission.request_id for submission in router.asked] == ["r", "r~1"]
    assert router.withdrawn == ["r"]
    assert [delta.choice for delta in deltas] == [0, 1, 1, 1, 0]
    assert [one.emitted for one in shards.assigned] == [
        (),
        (Emitted(0, (65,)), Emitted(1, (65, 65))),
    ]


async def test_the_shard_that_drained_is_named_as_source_until_the_next_token_is_out() -> None:
    def said(kind: type[FaultError]) -> Callable[[Request], Delta]:
        return lambda asked: RequestFailed(asked.request_id, kind.__name__, "it let go")

    fate: dict[str, list[Callable[[Request], Delta]]] = {
        "r": [token, said(Drained)],
        "r~1": [said(StaleLease)],
        "r~2": [token, said(Displaced)],
        "r~3": [lambda a: token(a, 0, STOP)],
    }
    shards = Shards(lambda a: [event(a) for event in fate[a.request_id]])
    [_ async for _ in make_door(Router(), shards).generate(request())]
    assert [one.source for one in shards.assigned] == [None, SHARD, SHARD, None]


async def test_of_several_shards_that_drained_in_a_row_the_first_has_the_pages() -> None:
    router, shards = Router(), Shards(drained_twice)
    other = replace(SHARD, incarnation="life-2")
    router.shards = [SHARD, other, other]
    [_ async for _ in make_door(router, shards).generate(request())]
    assert [one.source for one in shards.assigned] == [None, SHARD, SHARD]


async def test_a_shard_whose_time_to_hand_over_is_up_is_not_asked() -> None:
    shards = Shards(drained_twice)
    config = ShoalConfig(
        models=(MODEL,),
        failover=FailoverConfig(first_delay_s=1e-6, longest_delay_s=1e-6),
        fleet=FleetConfig(hand_over_s=0.0),
    )
    [_ async for _ in Door(Router(), shards, config, lambda: 0.0).generate(request())]
    assert [one.source for one in shards.assigned] == [None, None, None]


def drained_twice(asked: Request) -> list[Delta]:
    if asked.request_id == "r~2":
        return [token(asked, 0, STOP)]
    return [RequestFailed(asked.request_id, Drained.__name__, "it let go")]


async def test_what_is_out_counts_as_prompt_where_the_rest_is_placed() -> None:
    router = Router()
    shards = Shards(
        lambda a: [token(a), token(a), lost(a)] if "~" not in a.request_id else [token(a, 0, STOP)]
    )
    [_ async for _ in make_door(router, shards).generate(request())]
    submission = router.asked[-1]
    assert (submission.prompt_tokens, submission.max_tokens, submission.choices) == (12, 3, 1)
    assert [one.goes_on for one in router.asked] == [False, True]
    assert submission.page_hashes == page_hashes((*range(10), 65, 65), 4, tenant_salt("acme"))


async def test_choices_that_have_finished_are_not_computed_again() -> None:
    router = Router()
    shards = Shards(
        lambda a: (
            [token(a, 0, STOP), token(a, 1), lost(a)]
            if "~" not in a.request_id
            else [token(a, 1, STOP)]
        )
    )
    door = make_door(router, shards)
    deltas = [delta async for delta in door.generate(request(choices=2))]
    assert [delta.choice for delta in deltas] == [0, 1, 1]
    assert shards.assigned[1].emitted == (Emitted(1, (65,)),)
    assert router.asked[1].choices == 1


async def test_a_choice_that_met_its_stop_is_not_computed_again() -> None:
    router = Router()
    shards = Shards(
        lambda a: [token(a, 0), token(a, 1)] if "~" not in a.request_id else [token(a, 1, STOP)]
    )
    door = make_door(router, shards)
    async with aclosing(door.generate(request(choices=2))) as deltas:
        await anext(deltas)
        await anext(deltas)
        door.stop("r", 0)
        shards.streams[0].put(lost(request()))
        assert [delta.choice async for delta in deltas] == [1]
    assert shards.assigned[1].emitted == (Emitted(1, (65,)),)


async def test_a_loss_after_all_choices_met_their_stops_is_nobodys() -> None:
    router, shards = Router(), Shards(lambda asked: [token(asked), lost(asked)])
    door = make_door(router, shards)
    async with aclosing(door.generate(request())) as deltas:
        await anext(deltas)
        door.stop("r", 0)
        assert [delta async for delta in deltas] == []
    assert len(router.asked) == 1


async def test_late_tokens_of_a_lost_shard_are_heard_by_nobody() -> None:
    router = Router()
    shards = Shards(lambda a: [token(a), lost(a)] if "~" not in a.request_id else [token(a)])
    async with aclosing(make_door(router, shards).generate(request())) as deltas:
        await anext(deltas)
        await anext(deltas)
        shards.streams[0].put(TokenDelta("r", 0, (99,)))
        shards.streams[1].put(TokenDelta("r~1", 0, (66,), finish=STOP))
        assert [delta.tokens async for delta in deltas] == [(66,)]


@pytest.mark.parametrize(("failure", "runs"), [(StepFailed, 2), (ShardLost, 3)])
async def test_a_request_that_shards_die_of_is_refused_and_named(
    failure: type[ShardLost], runs: int
) -> None:
    router = Router()
    shards = Shards(lambda a: [RequestFailed(a.request_id, failure.__name__, "it died")])
    with pytest.raises(PoisonRequest, match=r"request r is not tried again.*it died"):
        await anext(make_door(router, shards).generate(request()))
    assert len(router.asked) == runs
    assert router.withdrawn == [submission.request_id for submission in router.asked]


async def test_a_suspect_says_so_and_is_cleared_by_a_token() -> None:
    router = Router()
    fate: dict[str, list[Callable[[Request], Delta]]] = {
        "r": [lost],
        "r~1": [token, lost],
        "r~2": [lambda a: token(a, 0, STOP)],
    }
    shards = Shards(lambda a: [event(a) for event in fate[a.request_id]])
    [_ async for _ in make_door(router, shards).generate(request())]
    assert [one.suspect for one in shards.assigned] == [False, True, False]


async def test_what_a_shard_went_silent_under_is_held_back_until_the_next_has_lived() -> None:
    shards = Shards(dies_twice)
    [_ async for _ in make_door(Router(), shards).generate(request())]
    assert [one.request.request_id for one in shards.assigned] == ["r", "r~1", "r~2"]
    assert shards.held == ["r~1", "r~2"]


async def test_who_leaves_while_the_request_is_held_back_gives_the_lease_back() -> None:
    router, shards = Router(), Shards(lambda asked: [lost(asked)])
    shards.reached = False
    door = make_door(router, shards, watch_s=3600.0)
    reading = asyncio.create_task(anext(door.generate(request())))
    await shards.has_opened(2)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert router.withdrawn[-1] == "r~1"


async def test_what_is_held_back_keeps_no_other_suspect_waiting() -> None:
    fate = {"a": lost, "b": failed}
    shards = Shards(lambda a: [fate[a.request_id](a) if a.request_id in fate else token(a)])
    door = make_door(Router(), shards, watch_s=3600.0)
    held = asyncio.create_task(anext(door.generate(replace(request(), request_id="a"))))
    await shards.has_opened(2)
    other = door.generate(replace(request(), request_id="b"))
    async with aclosing(other):
        assert await anext(other) == TokenDelta("b~1", 0, (65,))
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held
    assert "a~1" not in shards.sent


def dies_twice(asked: Request) -> list[Delta]:
    return [lost(asked) if asked.request_id in ("r", "r~1") else token(asked, 0, STOP)]


@pytest.mark.parametrize("fault", [lost, failed])
async def test_suspects_are_tried_one_at_a_time_until_a_token_is_out(
    fault: Callable[[Request], RequestFailed],
) -> None:
    shards = Shards(lambda a: [fault(a)] if "~" not in a.request_id else [])
    door = make_door(Router(), shards)
    readers = [
        asyncio.create_task(anext(door.generate(replace(request(), request_id=name))))
        for name in ("a", "b")
    ]
    await shards.has_sent(3)
    assert shards.sent == ["a", "b", "a~1"]
    shards.streams[2].put(TokenDelta("a~1", 0, (65,)))
    await shards.has_sent(4)
    shards.streams[3].put(TokenDelta("b~1", 0, (65,), finish=STOP))
    await asyncio.gather(*readers)


async def test_suspects_with_nothing_to_watch_ask_for_a_lease_one_at_a_time() -> None:
    router = Router()
    shards = Shards(lambda a: [failed(a)] if "~" not in a.request_id else [])
    readers = ask_first(make_door(router, shards), "a", "b")
    await shards.has_sent(3)
    assert [one.request_id for one in router.asked] == ["a", "b", "a~1"]
    shards.streams[2].put(TokenDelta("a~1", 0, (65,)))
    await shards.has_sent(4)
    shards.streams[3].put(TokenDelta("b~1", 0, (65,)))
    await asyncio.gather(*readers)


async def test_a_suspect_without_a_place_keeps_those_that_have_one_from_no_trial() -> None:
    class Full(Router):
        async def place(self, submission: Submission) -> Decision:
            decision = await super().place(submission)
            if submission.request_id == "placeless~1":
                asked.set()
                await asyncio.Event().wait()
            return decision

    asked = asyncio.Event()
    fate = {"placeless": failed, "watched": lost}
    shards = Shards(lambda a: [fate[a.request_id](a) if a.request_id in fate else token(a)])
    door = make_door(Full(), shards)
    [placeless] = ask_first(door, "placeless")
    await asked.wait()
    [watched] = ask_first(door, "watched")
    assert await watched == TokenDelta("watched~1", 0, (65,))
    await leave(placeless)


async def test_a_deadline_that_passes_while_others_are_tried_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, late_s = asyncio.get_running_loop(), [0.0]
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + late_s[0])
    fate = {"a~1": [], "b~1": [token]}
    router, shards = Router(), Shards(lambda a: [say(a) for say in fate.get(a.request_id, [lost])])
    shards.reached = False
    door = make_door(router, shards)
    [first] = ask_first(door, "a")
    await shards.has_sent(2)
    late = asyncio.create_task(
        anext(door.generate(replace(request(), request_id="b", deadline_s=3600.0)))
    )
    await shards.has_opened(4)
    late_s[0] = 3601.0
    shards.streams[1].put(TokenDelta("a~1", 0, (65,)))
    with pytest.raises(DeadlineExceeded):
        await late
    await first
    assert "b~1" not in shards.sent
    assert "b~1" in router.withdrawn


async def test_a_watched_shard_that_dies_is_replaced_before_its_watch_is_over() -> None:
    shards = Shards(lambda a: [lost(a)])
    [reading] = ask_first(make_door(Router(), shards, watch_s=3600.0), "a")
    await shards.has_opened(2)
    shards.streams[1].put(displaced("a~1"))
    await shards.has_opened(3)
    await leave(reading)
    assert shards.sent == ["a"]


async def test_a_suspect_whose_shard_died_while_it_waited_for_its_trial_is_not_sent() -> None:
    shards = Shards(lambda a: [lost(a)] if "~" not in a.request_id else [])
    readers = ask_first(make_door(Router(), shards), "a", "b")
    await shards.has_opened(4)
    await shards.has_sent(3)
    first, second = shards.streams[2:]
    second.put(displaced(second.request_id))
    first.put(TokenDelta(first.request_id, 0, (65,)))
    await shards.has_sent(4)
    assert shards.sent == ["a", "b", "a~1", "b~2"]
    shards.streams[4].put(TokenDelta("b~2", 0, (65,)))
    await asyncio.gather(*readers)


def ask_first(door: Door, *names: str) -> list[asyncio.Task[TokenDelta]]:
    """Wait for the first token of each."""
    deltas = [door.generate(replace(request(), request_id=name)) for name in names]
    return [asyncio.ensure_future(anext(one)) for one in deltas]


async def leave(reading: asyncio.Task[TokenDelta]) -> None:
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


def displaced(request_id: str) -> RequestFailed:
    return RequestFailed(request_id, Displaced.__name__, "it died before it was sent")


async def test_an_accepted_request_waits_where_a_new_one_would_be_refused() -> None:
    router = Router()
    shards = Shards(lambda a: [token(a, 0, STOP)] if "~" in a.request_id else [token(a), lost(a)])
    async with aclosing(make_door(router, shards).generate(request())) as deltas:
        await anext(deltas)
        router.refusals = [RefusalKind.NOT_READY, RefusalKind.QUEUE_FULL]
        assert [delta.finish async for delta in deltas] == [STOP]
    assert [submission.request_id for submission in router.asked] == ["r", "r~1", "r~2", "r~3"]


async def test_patience_ends_and_the_last_reason_is_told() -> None:
    router = Router()
    shards = Shards(lambda a: [RequestFailed(a.request_id, Displaced.__name__, "it is drained")])
    with pytest.raises(Displaced, match="it is drained"):
        await anext(make_door(router, shards, patience_s=0.0).generate(request()))
    assert len(router.asked) == 1


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
        (RefusalKind.ABANDONED, CapacityError),
    ],
)
async def test_a_refusal_says_when_to_come_back(
    kind: RefusalKind, error: type[CapacityError]
) -> None:
    router, shards = Router(), Shards(lambda asked: [])
    router.refusals = [kind]
    with pytest.raises(error, match="the reason") as refused:
        await anext(make_door(router, shards).generate(request()))
    assert refused.value.retry_after_s == 7.0
    assert shards.assigned == []


async def test_what_never_fits_is_the_callers_to_change() -> None:
    router, shards = Router(), Shards(lambda asked: [])
    router.refusals = [RefusalKind.NEVER_FITS]
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
