"""Shards follow the load: the scheduler is asked how each model does, and the fleet is scaled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from ray.exceptions import RayError

from actors.lives import Life
from actors.naming import SCHEDULER
from cluster.autoscaling import Autoscaler
from cluster.autoscaling_config import AutoscalingConfig
from cluster.config import ModelConfig
from cluster.errors import NotReady
from cluster.stats import ModelStats

LOOK_S = 1.0
"""Between two looks, and the longest wait for an answer, seconds."""

Demand = Mapping[str, ModelStats]

logger = logging.getLogger(__name__)


async def ask(lives: Mapping[str, Life]) -> Demand:
    """How the models do. Raises NotReady where no scheduler lives that could tell, or RayError."""
    scheduler = lives.get(SCHEDULER)
    if scheduler is None:
        raise NotReady("no scheduler lives", retry_after_s=LOOK_S)
    demand: Demand = await scheduler.handle.demand.remote()
    return demand


class ShardScaler:
    """Looks at every model that is to be autoscaled, and says so where another number is wanted.

    `ask` tells how the models do; `scale` is told how many shards are wanted from now on; `clock`
    gives seconds that never go back.
    """

    def __init__(
        self,
        models: Iterable[ModelConfig],
        ask: Callable[[], Awaitable[Demand]],
        scale: Callable[[Mapping[str, int]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bounds: dict[str, AutoscalingConfig] = {}
        self._places: dict[str, int] = {}
        self._autoscalers: dict[str, Autoscaler] = {}
        for model in models:
            if model.autoscaling is not None:
                self._bounds[model.name] = model.autoscaling
                self._places[model.name] = model.steps.places
                self._begin(model.name, model.first_shards)
        self._ask = ask
        self._scale = scale
        self._clock = clock

    def resume(self, living: Mapping[str, int]) -> None:
        """Begin with the shards that an earlier fleet has left. A model that may sleep and has none
        was asleep; another that has none begins as if there had been no fleet."""
        asleep = {name: 0 for name, bounds in self._bounds.items() if bounds.may_sleep}
        left = asleep | dict(living)
        for name in sorted(self._bounds.keys() & left.keys()):
            self._scale({name: self._begin(name, left[name]).wanted})

    def _begin(self, name: str, shards: int) -> Autoscaler:
        made = Autoscaler(self._bounds[name], shards, self._places[name])
        self._autoscalers[name] = made
        return made

    async def run(self) -> None:
        """Look for ever; without a model to scale there is nothing to look at."""
        while self._autoscalers:
            try:
                async with asyncio.timeout(LOOK_S):
                    demand = await self._ask()
                self.look(demand)
            except (RayError, NotReady, TimeoutError):
                pass  # without a scheduler nobody knows how the models do, and nothing changes
            except Exception:  # the loop outlives what it finds: nobody else would scale
                logger.exception("the models could not be scaled")
            await asyncio.sleep(LOOK_S)

    def look(self, demand: Demand) -> None:
        """One look at each model; of one that nobody has heard of, nothing is asked."""
        now = self._clock()
        for name, autoscaler in self._autoscalers.items():
            wanted = autoscaler.look(demand.get(name, ModelStats()), now)
            if wanted is not None:
                logger.info("%s: %d shards from now on: %s", name, wanted.shards, wanted.why)
                self._scale({name: wanted.shards})
