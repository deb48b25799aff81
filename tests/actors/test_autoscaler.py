"""The fleet is told another number of shards where the models need one, and nothing otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from actors.autoscaler import ShardScaler
from cluster.autoscaling_config import AutoscalingConfig
from cluster.batching_config import BatchingConfig
from cluster.config import ModelConfig
from cluster.errors import NotReady
from cluster.stats import ModelStats
from tests.actors.living import until

MODELS = (
    ModelConfig(name="moving", autoscaling=AutoscalingConfig(max_shards=4)),
    ModelConfig(name="fixed", shards=2),
)
FULL = ModelStats(shards=1, queued=8, running=8, utilization=1.0)


class Asked:
    """Answers to the scaler's questions, given in turn, and what it then wanted."""

    def __init__(self, *models: ModelConfig) -> None:
        self.now = 0.0
        self.questions = 0
        self.wanted: list[Mapping[str, int]] = []
        self.scaler = ShardScaler(models, self.ask, self.wanted.append, lambda: self.now)

    async def ask(self) -> Mapping[str, ModelStats]:
        self.questions += 1
        if self.questions == 1:
            raise NotReady("no scheduler lives", retry_after_s=1.0)
        return {"moving": FULL}


def test_only_models_that_are_to_be_autoscaled_are() -> None:
    asked = Asked(*MODELS)
    asked.scaler.look({"moving": FULL, "fixed": FULL})

    assert asked.wanted == [{"moving": 2}]


def test_a_model_that_nobody_has_heard_of_stays_as_it_is() -> None:
    asked = Asked(*MODELS)
    asked.scaler.look({})

    assert asked.wanted == []


async def test_it_goes_on_asking_while_the_scheduler_is_away() -> None:
    asked = Asked(*MODELS)
    running = asyncio.create_task(asked.scaler.run())

    async def decided() -> bool:
        return bool(asked.wanted)

    await until(decided)
    running.cancel()
    assert asked.questions == 2


async def test_without_a_model_to_scale_nobody_is_asked() -> None:
    asked = Asked(MODELS[1])
    await asked.scaler.run()

    assert asked.questions == 0


@pytest.mark.parametrize(("fewest", "sleeps"), [(0, True), (1, False)])
def test_a_model_may_sleep_where_it_may_have_no_shard(fewest: int, sleeps: bool) -> None:
    bounds = AutoscalingConfig(min_shards=fewest, max_shards=2)
    assert ModelConfig(autoscaling=bounds).may_sleep is sleeps
    assert not ModelConfig().may_sleep


def test_what_an_earlier_fleet_has_left_is_what_it_begins_with() -> None:
    asked = Asked(*MODELS)
    asked.scaler.resume({"moving": 3, "fixed": 2})
    asked.scaler.look({"moving": replace(FULL, shards=3)})

    assert asked.wanted == [{"moving": 3}, {"moving": 4}]


def test_what_sleeps_when_another_fleet_comes_sleeps_on() -> None:
    bounds = AutoscalingConfig(min_shards=0, max_shards=2)
    sleeper = ModelConfig(name="sleeper", shards=2, autoscaling=bounds)
    asked = Asked(*MODELS, sleeper)
    asked.scaler.resume({"moving": 1})
    assert asked.wanted == [{"moving": 1}, {"sleeper": 0}]

    asked.scaler.look({"moving": FULL, "sleeper": ModelStats(queued=1)})
    assert asked.wanted[-1] == {"sleeper": 1}


def test_a_model_wakes_with_shards_by_the_places_that_each_will_have() -> None:
    bounds, small = AutoscalingConfig(min_shards=0, max_shards=9), BatchingConfig(max_num_seqs=4)
    asked = Asked(ModelConfig(name="sleeper", shards=0, autoscaling=bounds, batching=small))
    asked.scaler.look({"sleeper": ModelStats(queued=5)})

    assert asked.wanted == [{"sleeper": 2}]
