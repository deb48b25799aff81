"""The routing deployment as doors call it, over a Serve handle that plays a script."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from cluster.errors import SchedulerLost
from cluster.messages import Decision, Lease, Reason, ShardRef, Submission
from deployments.router import HANDLE_ATTEMPTS, RouterHandle

SUBMISSION = Submission("r", "", "m", "t", "P1", 20, 10, 1, ())
LEASE = Lease("r", 1, ShardRef("m/shard-0", "m", "m/shard-0", "life-1"), 0, Reason(0.0, ()))
DEAD = ActorUnavailableError("the replica is away", None)


class Response:
    """What a handle's call gives: awaited, or cancelled."""

    def __init__(self) -> None:
        self.decision: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self.cancelled = False

    def __await__(self) -> Generator[Any, None, Decision]:
        return self.decision.__await__()

    def cancel(self) -> None:
        self.cancelled = True


class Calls:
    """One method of the handle: what it was called with, and the responses it gave."""

    def __init__(self, *outcomes: Decision | Exception) -> None:
        self.outcomes = list(outcomes)
        self.arguments: list[Any] = []
        self.responses: list[Response] = []
        self.called = asyncio.Event()

    def remote(self, argument: Any) -> Response:
        response = Response()
        self.arguments.append(argument)
        self.responses.append(response)
        self.called.set()
        if self.outcomes:
            outcome = self.outcomes.pop(0)
            if isinstance(outcome, Exception):
                response.decision.set_exception(outcome)
            else:
                response.decision.set_result(outcome)
        return response


class Handle:
    """A DeploymentHandle of the routers; calls beyond `outcomes` are never answered."""

    def __init__(self, *outcomes: Decision | Exception) -> None:
        self.place = Calls(*outcomes)
        self.withdraw = Calls()


async def test_another_replica_is_asked_where_one_is_away() -> None:
    handle = Handle(DEAD, LEASE)
    assert await RouterHandle(handle, retry_s=0.0).place(SUBMISSION) == LEASE
    assert handle.place.arguments == [SUBMISSION, SUBMISSION]
    assert handle.withdraw.arguments == []


async def test_without_any_replica_the_scheduler_is_out_of_reach() -> None:
    handle = Handle(*[DEAD] * HANDLE_ATTEMPTS)
    with pytest.raises(SchedulerLost):
        await RouterHandle(handle, retry_s=0.0).place(SUBMISSION)


async def test_whoever_stops_waiting_for_a_decision_withdraws() -> None:
    handle = Handle()
    placing = asyncio.create_task(RouterHandle(handle).place(SUBMISSION))
    await handle.place.called.wait()
    placing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await placing
    assert handle.place.responses[0].cancelled
    assert handle.withdraw.arguments == ["r"]


async def test_whoever_stops_waiting_between_two_replicas_withdraws_too() -> None:
    handle = Handle(DEAD)
    placing = asyncio.create_task(RouterHandle(handle, retry_s=3600.0).place(SUBMISSION))
    await handle.place.called.wait()
    placing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await placing
    assert len(handle.place.responses) == 1
    assert handle.withdraw.arguments == ["r"]
