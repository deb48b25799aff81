"""The routing deployment: as doors call it, over a Serve handle that plays a script, and whose
shards it asks the scheduler for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import serve
from ray.exceptions import ActorUnavailableError

from actors.fleet_status import FleetStatus, MemberStatus
from actors.lifecycle import State
from cluster.config import parse_config
from cluster.errors import ModelNotFound, SchedulerLost
from cluster.explanations import Forecast
from cluster.messages import Decision, DecisionBatch, Lease, Reason, ShardRef, Submission
from cluster.stats import SchedulerStats
from deployments.readiness import Readiness
from deployments.router import HANDLE_ATTEMPTS, Router, RouterHandle

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


class Method:
    """One method of an actor."""

    def __init__(self, answer: Any) -> None:
        self.remote = answer


class Scheduler:
    """Stands in for Ray's handle of the scheduler: leases at once what it is asked to place."""

    def __init__(self) -> None:
        self.asked: list[Submission] = []
        self.submit = Method(self._submit)
        self.forecast = Method(self._forecast)
        self.decisions = Method(self._decisions)
        self.stats = Method(self._stats)
        self.shards: tuple[ShardRef, ...] = ()

    async def _stats(self) -> SchedulerStats:
        return SchedulerStats(epoch=1, shards=self.shards)

    async def _submit(self, _router: str, batch: tuple[Submission, ...]) -> tuple[Decision, ...]:
        self.asked += batch
        return (LEASE,)

    async def _forecast(self, submission: Submission) -> Forecast:
        self.asked.append(submission)
        return Forecast(None, 0.0, 0.0, ())

    async def _decisions(self, _router: str, _acknowledged: int) -> DecisionBatch:
        await asyncio.Event().wait()
        raise AssertionError("nobody decides later here")


class Fleet:
    """A DeploymentHandle of the fleet, which wants one shard of `m`; gone without a `told`."""

    def __init__(self) -> None:
        self.status = Method(self._status)
        self.told: FleetStatus | None = FleetStatus({"m": 1, "z": 0}, (), 0.0)

    async def _status(self) -> FleetStatus:
        if self.told is None:
            raise DEAD
        return self.told


CONFIG = {
    "models": [
        {"name": "m", "source": "s"},
        {
            "name": "m-acme",
            "source": "s",
            "tenant": "acme",
            "instead_of": "m",
            "autoscaling": {"min_shards": 0, "max_shards": 1},
        },
        {"name": "z", "source": "s", "autoscaling": {"min_shards": 0, "max_shards": 1}},
    ]
}
ACME = Submission("r", "forged", "m", "acme", "P1", 20, 10, 1, ())


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    """Whom Ray finds by that name."""
    there = Scheduler()
    monkeypatch.setattr(ray, "get_actor", lambda _name, _namespace: there)
    return there


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
async def router(monkeypatch: pytest.MonkeyPatch, fleet: Fleet) -> AsyncIterator[Router]:
    replica = SimpleNamespace(replica_id=SimpleNamespace(unique_id="router-1"), app_name="app")
    monkeypatch.setattr(serve, "get_replica_context", lambda: replica)
    made = Router(parse_config(CONFIG), fleet=fleet)
    yield made
    await made._scheduler.close()


async def test_a_tenant_with_its_own_shards_is_placed_there_and_others_are_not(
    scheduler: Scheduler, router: Router
) -> None:
    assert await router.place(ACME) == LEASE
    assert await router.place(SUBMISSION) == LEASE
    asked = [(one.router, one.model, one.tenant) for one in scheduler.asked]
    assert asked == [("router-1", "m-acme", "acme"), ("router-1", "m", "t")]


async def test_requests_for_a_model_that_may_sleep_may_wake_it_and_others_do_not(
    scheduler: Scheduler, router: Router
) -> None:
    await router.place(ACME)
    await router.place(SUBMISSION)
    assert [(one.model, one.wakes) for one in scheduler.asked] == [("m-acme", True), ("m", False)]


@pytest.mark.parametrize(
    ("living", "obstacles", "asleep"),
    [
        ((), ("m has 1 shards wanted",), ("z",)),
        (("m",), (), ("z",)),
        (("m", "z"), (), ()),
    ],
)
async def test_a_model_without_a_shard_is_an_obstacle_unless_it_may_sleep(
    scheduler: Scheduler,
    router: Router,
    living: tuple[str, ...],
    obstacles: tuple[str, ...],
    asleep: tuple[str, ...],
) -> None:
    scheduler.shards = tuple(ShardRef(f"{model}/shard-0", model, "", "") for model in living)
    assert await router.readiness() == Readiness(obstacles, asleep)


async def test_a_model_that_may_sleep_and_whose_first_shard_is_on_its_way_is_loading(
    scheduler: Scheduler, router: Router, fleet: Fleet
) -> None:
    scheduler.shards = (ShardRef("m/shard-0", "m", "", ""),)
    fleet.told = FleetStatus({"m": 1, "m-acme": 1, "z": 1}, (), 0.0)
    assert await router.readiness() == Readiness(loading=("z",))


@pytest.mark.parametrize("state", State)
async def test_no_obstacle_reads_as_if_its_shard_were_ready(
    scheduler: Scheduler, router: Router, fleet: Fleet, state: State
) -> None:
    member = MemberStatus("m/shard-0", "m", state, 22.0, 1, "no memory")
    fleet.told = FleetStatus({"m": 1}, (member,), 0.0)
    (obstacle,) = (await router.readiness()).obstacles
    assert obstacle.startswith("m/shard-0 ")
    assert "22 s" in obstacle
    assert obstacle.endswith("(no memory)")
    assert "is ready" not in obstacle


async def test_without_a_fleet_what_serves_is_ready_and_what_is_missing_is_named(
    scheduler: Scheduler, router: Router, fleet: Fleet
) -> None:
    fleet.told = None
    assert (await router.readiness()).obstacles == (
        "m has no shard, and the fleet does not answer",
    )
    scheduler.shards = (ShardRef("m/shard-0", "m", "", ""),)
    assert await router.readiness() == Readiness(asleep=("z",))


async def test_a_forecast_is_of_the_shards_that_would_serve_the_tenant(
    scheduler: Scheduler, router: Router
) -> None:
    await router.forecast(ACME)
    await router.forecast(SUBMISSION)
    assert [one.model for one in scheduler.asked] == ["m-acme", "m"]


async def test_what_is_another_tenants_is_neither_placed_nor_forecast(
    scheduler: Scheduler, router: Router
) -> None:
    theirs = replace(SUBMISSION, model="m-acme")
    for ask in (router.place, router.forecast):
        with pytest.raises(ModelNotFound):
            await ask(theirs)
    assert scheduler.asked == []
