"""The owning deployment: the Serve shell around `actors.fleet.Fleet`, which does the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, ServeStatus

from actors.creation import ON_HEAD
from actors.fleet import Fleet
from actors.fleet_status import FleetStatus
from cluster.config import ShoalConfig, parse_settings
from cluster.errors import FaultError

STUCK_AFTER_S = 30.0
"""Without a look of the reconcile loop for so long, Serve replaces the replica."""

STATUS_TIMEOUT_S = 5.0
LEAVING = (ApplicationStatus.DELETING, ApplicationStatus.NOT_STARTED)


class FleetDeployment:
    """Exactly one replica, which owns the scheduler and the shards; no request passes it.

    Serve begins to stop an outdated replica before it starts the next, which takes seconds to
    begin: only that keeps the two apart.
    """

    def __init__(self, config: ShoalConfig) -> None:
        self._models = [model.name for model in config.models]
        self._autoscaled = [model.name for model in config.models if model.autoscaling]
        self._application = serve.get_replica_context().app_name
        self._fleet = Fleet(config, namespace=self._application)
        self._started = False

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Apply `{"shards": {model: count}}`; living shards that stay wanted are kept.

        Serve calls it before all else, and only then is it known how many shards are wanted.
        Raises ConfigError, having changed nothing, with the path of what is wrong.
        """
        settings = parse_settings(user_config, self._models, self._autoscaled)
        self._fleet.scale(settings.shards)
        if not self._started:
            self._started = True
            self._fleet.start()

    def check_health(self) -> None:
        """Healthy is who looks after the shards, whatever the shards do. Raises FaultError."""
        age = self._fleet.status().tick_age_s
        if age > STUCK_AFTER_S:
            raise FaultError(f"the fleet has not looked after its shards for {age:.0f} s")

    def status(self) -> FleetStatus:
        return self._fleet.status()

    async def __del__(self) -> None:
        """Serve awaits this as it stops the replica. With the application goes every actor; else
        they serve on until the next replica finds them."""
        if await is_to_stay(self._application):
            await self._fleet.let_go()
        else:
            await self._fleet.stop()


async def is_to_stay(application: str, ask: Callable[[], ServeStatus] = serve.status) -> bool:
    """Whether Serve goes on with the application, as far as is known: where Serve does not say, the
    shards go on serving, and end by themselves if no successor comes. `ask` may block."""
    try:
        async with asyncio.timeout(STATUS_TIMEOUT_S):
            status = await asyncio.to_thread(ask)
    except (RayError, RayServeException, TimeoutError):
        return True
    overview = status.applications.get(application)
    return overview is not None and overview.status not in LEAVING


fleet_deployment = serve.deployment(
    FleetDeployment,
    name="Fleet",
    num_replicas=1,
    max_ongoing_requests=1000,
    ray_actor_options={"num_cpus": 0, "resources": ON_HEAD},
)
"""Bind it with a ShoalConfig; its actors are found in a namespace called as the application."""
