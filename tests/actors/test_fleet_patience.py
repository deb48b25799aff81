"""How long a fleet may be about its first look."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import ray

from actors.fleet import Fleet
from cluster.config import ModelConfig, ShoalConfig
from cluster.scheduling_config import SchedulingConfig


def test_a_fleet_that_waits_for_mute_shards_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_runtime_env_string=lambda: "{}")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    scheduling = SchedulingConfig(shard_timeout_s=100.0, router_timeout_s=100.0)
    fleet = Fleet(ShoalConfig(models=(ModelConfig(name="m"),), scheduling=scheduling), "tests")
    began = time.monotonic()
    ages = []
    for passed_s in (0.0, 99.0, 140.0):
        monkeypatch.setattr(time, "monotonic", lambda later=began + passed_s: later)
        ages.append(round(fleet.status().tick_age_s))
    assert ages == [0, 0, 40]
