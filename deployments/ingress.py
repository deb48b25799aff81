"""The Gateway as a Serve deployment: where it gets its models, its keys and its door."""

from __future__ import annotations

import asyncio
import os
import time
from random import SystemRandom
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from actors.channel import Channels
from actors.channel_timing import ChannelTiming
from actors.models import ensure_model
from actors.survey import survey
from cluster.config import ShoalConfig
from cluster.garbage import collect_seldom
from deployments.auth import ApiKeys
from deployments.door import Door
from deployments.gateway import Gateway, Outside
from deployments.readiness import Readiness
from deployments.router import RouterHandle
from deployments.routes import create_app
from deployments.served import ServedModel

READY_TIMEOUT_S = 3.0


class Ingress(Gateway):
    """A replica of the Gateway deployment.

    Raises OperatorError as it is built where keys or a model's tokenizer are missing: the
    deployment then shows the message and takes no request.
    """

    def __init__(self, config: ShoalConfig, router: DeploymentHandle) -> None:
        keys = ApiKeys.from_environment(config.gateway.auth, os.environ)
        models = [ServedModel.load(model, ensure_model(model.source)) for model in config.models]
        replica = serve.get_replica_context()
        scheduling = config.scheduling
        timing = ChannelTiming(silence_s=scheduling.shard_timeout_s, audit_s=scheduling.audit_s)
        channels = Channels(replica.app_name, replica.replica_id.unique_id, timing)
        chance = SystemRandom()
        self._router = RouterHandle(router, door=ray.get_runtime_context().get_actor_name() or "")
        self._door = Door(self._router, channels, config, chance.random)
        outside = Outside(
            self._door,
            self._readiness,
            self._router.stats,
            survey,
            self._router.explain,
            self._router.forecast,
            now=time.time,
            random=chance,
        )
        super().__init__(config, models, keys, outside)
        collect_seldom()

    def __serve_build_asgi_app__(self) -> Any:
        """The HTTP routes, once the replica stands."""
        return create_app(self)

    async def __del__(self) -> None:
        """Serve awaits this as it stops the replica: shards learn at once that we left."""
        await self._door.close()

    async def _readiness(self) -> Readiness:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                return await self._router.readiness()
        except (TimeoutError, RayActorError, RayServeException):
            return Readiness(("the routers, the scheduler or the fleet do not answer",))
