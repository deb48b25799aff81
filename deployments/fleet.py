"""The owning deployment: the Serve shell around `actors.fleet.Fleet`, which does the work."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, ValidationError
from ray import serve

from actors.fleet import Fleet, FleetStatus
from cluster.config import Frozen, ShoalConfig
from cluster.errors import ConfigError, FaultError, ModelNotFound

STUCK_AFTER_S = 30.0
"""Without a look of the reconcile loop for so long, Serve replaces the replica."""


class FleetSettings(Frozen):
    """What the deployment's `user_config` may hold: knobs that need no restart."""

    shards: dict[str, Annotated[int, Field(ge=0, le=4096)]] = Field(
        default_factory=dict, description="Shards wanted, by model."
    )


class FleetDeployment:
    """Exactly one replica, which owns the scheduler and the shards; no request passes it."""

    def __init__(self, config: ShoalConfig) -> None:
        self._fleet = Fleet(config, namespace=serve.get_replica_context().app_name)
        self._fleet.start()

    def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Apply `{"shards": {model: count}}`; living shards that stay wanted are kept.

        Raises ConfigError, having changed nothing, with the path of what is wrong.
        """
        try:
            self._fleet.scale(parse_settings(user_config).shards)
        except ModelNotFound as error:
            path = "user_config.shards"
            raise ConfigError(f"{path}: {error.message}", path) from None

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


def parse_settings(user_config: dict[str, Any]) -> FleetSettings:
    """Raises ConfigError that lists every wrong field: its path and what was wrong."""
    try:
        settings = FleetSettings.model_validate(user_config)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        paths = [".".join(("user_config", *map(str, problem["loc"]))) for problem in problems]
        lines = [
            f"  {path}: {problem['msg']} (got {problem['input']!r})"
            for path, problem in zip(paths, problems, strict=True)
        ]
        message = "the settings of the fleet are refused:\n" + "\n".join(lines)
        raise ConfigError(message, paths[0]) from None
    return settings


fleet_deployment = serve.deployment(
    FleetDeployment,
    name="Fleet",
    num_replicas=1,
    max_ongoing_requests=1000,
    ray_actor_options={"num_cpus": 0},
)
"""Bind it with a ShoalConfig; its actors are found in a namespace called as the application."""
