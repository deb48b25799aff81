"""The owning deployment: the Serve shell around `actors.fleet.Fleet`, which does the work."""

from __future__ import annotations

from typing import Any

from ray import serve

from actors.creation import ON_HEAD
from actors.fleet import Fleet, FleetStatus
from cluster.config import ShoalConfig, parse_settings
from cluster.errors import FaultError

STUCK_AFTER_S = 30.0
"""Without a look of the reconcile loop for so long, Serve replaces the replica."""


class FleetDeployment:
    """Exactly one replica, which owns the scheduler and the shards; no request passes it."""

    def __init__(self, config: ShoalConfig) -> None:
        self._models = [model.name for model in config.models]
        self._autoscaled = [model.name for model in config.models if model.autoscaling]
        self._fleet = Fleet(config, namespace=serve.get_replica_context().app_name)
        self._fleet.start()

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Apply `{"shards": {model: count}}`; living shards that stay wanted are kept.

        Raises ConfigError, having changed nothing, with the path of what is wrong.
        """
        settings = parse_settings(user_config, self._models, self._autoscaled)
        self._fleet.scale(settings.shards)

    def check_health(self) -> None:
        """Healthy is who looks after the shards, whatever the shards do. Raises FaultError."""
        age = self._fleet.status().tick_age_s
        if age > STUCK_AFTER_S:
            raise FaultError(f"the fleet has not looked after its shards for {age:.0f} s")

    def status(self) -> FleetStatus:
        return self._fleet.status()

    async def __del__(self) -> None:
        """Serve awaits this as it stops the replica: no actor is left."""
        await self._fleet.stop()


fleet_deployment = serve.deployment(
    FleetDeployment,
    name="Fleet",
    num_replicas=1,
    max_ongoing_requests=1000,
    ray_actor_options={"num_cpus": 0, "resources": ON_HEAD},
)
"""Bind it with a ShoalConfig; its actors are found in a namespace called as the application."""
