"""The routing deployment: stateless, many; it signs submissions and speaks to the scheduler.

A door asks any replica and may ask another one when that replica dies: submits are idempotent by
request id, and the scheduler answers to the router that asked last.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from actors.fleet_status import FleetStatus
from actors.naming import ActorAddress
from actors.scheduler_client import SchedulerClient
from cluster.config import ShoalConfig
from cluster.errors import NotReady, SchedulerLost
from cluster.explanations import Explanation, Forecast
from cluster.garbage import collect_seldom
from cluster.isolation import Isolation
from cluster.messages import Decision, ShardRef, Submission
from cluster.stats import ClusterStats, ShardStats
from deployments.readiness import Readiness, readiness_of

STATS_TIMEOUT_S = 2.0
FLEET_TIMEOUT_S = 1.0
HANDLE_ATTEMPTS = 120
HANDLE_RETRY_S = 0.25
"""Half a minute in all: Serve takes some seconds to start a replica."""


class Router:
    """What runs in a replica of the routing deployment."""

    def __init__(self, config: ShoalConfig, fleet: DeploymentHandle) -> None:
        context = serve.get_replica_context()
        self._name = context.replica_id.unique_id
        self._isolation = Isolation(config.models)
        self._models = frozenset(model.name for model in config.models)
        self._stand_ins = frozenset(model.name for model in config.models if model.instead_of)
        self._sleepers = frozenset(model.name for model in config.models if model.may_sleep)
        self._namespace = context.app_name
        silence_s = config.scheduling.router_timeout_s * 2 / 3
        self._scheduler = SchedulerClient(
            self._name, self._namespace, silence_s=silence_s, audit_s=config.scheduling.audit_s
        )
        self._fleet = fleet
        collect_seldom()

    async def place(self, submission: Submission) -> Decision:
        """The scheduler's decision, however long the request queues.

        Raises ModelNotFound for a model that is not there for the tenant.
        """
        return await self._scheduler.place(self._signed(submission))

    async def withdraw(self, request_id: str) -> None:
        """The request, or the lease it got, is no longer wanted."""
        await self._scheduler.withdraw(request_id)

    async def stats(self) -> ClusterStats:
        """The cluster's books; a shard that is out of reach is left out."""
        scheduler = await self._scheduler.stats()
        answers = await asyncio.gather(*map(self._shard_stats, scheduler.shards))
        return ClusterStats(scheduler, tuple(stats for stats in answers if stats is not None))

    async def explain(self, request_id: str) -> Explanation | None:
        """Why the request was last decided as it was; None where that is not remembered."""
        return await self._scheduler.explain(request_id)

    async def forecast(self, submission: Submission) -> Forecast:
        """What would become of it at this moment; nothing is changed by asking."""
        return await self._scheduler.forecast(self._signed(submission))

    def _signed(self, submission: Submission) -> Submission:
        model = self._isolation.shards_for(submission.model, submission.tenant)
        wakes = model in self._sleepers
        return replace(submission, router=self._name, model=model, wakes=wakes)

    async def _shard_stats(self, shard: ShardRef) -> ShardStats | None:
        try:
            async with asyncio.timeout(STATS_TIMEOUT_S):
                handle = await ActorAddress(shard.actor, self._namespace).look_up()
                stats: ShardStats = await handle.stats.remote()
        except (RayActorError, NotReady, TimeoutError):
            return None
        return stats

    async def readiness(self) -> Readiness:
        """What becomes of the models that no living shard serves."""
        stats = await self._scheduler.stats()
        unserved = self._models - {shard.model for shard in stats.shards}
        status = await self._fleet_status() if unserved else None
        return readiness_of(unserved, self._sleepers, self._stand_ins, status)

    async def _fleet_status(self) -> FleetStatus | None:
        """None where no Fleet answers: what serves is served without one."""
        try:
            async with asyncio.timeout(FLEET_TIMEOUT_S):
                status: FleetStatus = await self._fleet.status.remote()
        except (TimeoutError, RayActorError, RayServeException):
            return None
        return status


class RouterHandle:
    """The routing deployment as doors call it: another replica is asked when one dies."""

    def __init__(
        self, handle: DeploymentHandle, retry_s: float = HANDLE_RETRY_S, door: str = ""
    ) -> None:
        """`door`: the Ray name of the actor in which this is, if it is in one."""
        self._door = door
        self._handle = handle
        self._retry_s = retry_s

    async def place(self, submission: Submission) -> Decision:
        """See `Router.place`; cancelling the wait withdraws the request."""
        try:
            return await self._decision(replace(submission, door=self._door))
        except asyncio.CancelledError:
            self.withdraw(submission.request_id)
            raise

    def withdraw(self, request_id: str) -> None:
        """Say so and do not wait."""
        self._handle.withdraw.remote(request_id)

    async def stats(self) -> ClusterStats:
        """See `Router.stats`."""
        stats: ClusterStats = await self._handle.stats.remote()
        return stats

    async def explain(self, request_id: str) -> Explanation | None:
        """See `Router.explain`."""
        explanation: Explanation | None = await self._handle.explain.remote(request_id)
        return explanation

    async def forecast(self, submission: Submission) -> Forecast:
        """See `Router.forecast`."""
        forecast: Forecast = await self._handle.forecast.remote(submission)
        return forecast

    async def readiness(self) -> Readiness:
        """See `Router.readiness`."""
        readiness: Readiness = await self._handle.readiness.remote()
        return readiness

    async def _decision(self, submission: Submission) -> Decision:
        for _ in range(HANDLE_ATTEMPTS):
            response = self._handle.place.remote(submission)
            try:
                decision: Decision = await response
            except (RayActorError, RayServeException):
                await asyncio.sleep(self._retry_s)
            except asyncio.CancelledError:
                response.cancel()
                raise
            else:
                return decision
        raise SchedulerLost("no router answered")
