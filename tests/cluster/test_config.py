"""The configuration is checked before anything starts; a refusal says where, what, allowed."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from cluster.config import ShoalConfig, parse_config
from cluster.errors import ConfigError


def refusal(args: dict[str, Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_config(args)
    return caught.value


def test_nothing_written_is_the_whole_default() -> None:
    config = parse_config({})
    assert config == ShoalConfig()
    assert [model.source for model in config.models] == ["default"]
    assert config.gateway.auth.mode == "keys"


def test_what_is_written_is_kept() -> None:
    config = parse_config(
        {
            "models": [{"name": "m", "source": "/m", "cache": {"num_blocks": 9}, "shards": 2}],
            "scheduling": {"classes": [{"name": "only"}], "default_class": "only"},
        }
    )
    assert (config.models[0].cache.num_blocks, config.models[0].shards) == (9, 2)
    assert [sla.name for sla in config.scheduling.classes] == ["only"]


def test_a_configuration_is_frozen_in_every_part() -> None:
    config = parse_config({})
    for part, field in [
        (config, "models"),
        (config.models[0], "shards"),
        (config.models[0].cache, "block_size"),
        (config.gateway.auth, "mode"),
    ]:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(part, field, 1)


@pytest.mark.parametrize(
    ("args", "path", "allowed"),
    [
        (
            {"models": [{"autoscaling": {"max_shards": 3, "max": 3}}]},
            "args.models[0].autoscaling.max",
            "down_after_s, growth, idle_s, max_shards",
        ),
        ({"modles": []}, "args.modles", "gateway, models, router, scheduling"),
        (
            {"models": [{"dytpe": "auto"}]},
            "args.models[0].dytpe",
            "dtype, instead_of, load_timeout_s",
        ),
        (
            {"models": [{}, {"cache": {"pages": 3}}]},
            "args.models[1].cache.pages",
            "block_size, folder, high_water, host_gib, low_water, memory_fraction, memory_gib",
        ),
        ({"models": [{"resources": {"gpu": 1}}]}, "args.models[0].resources.gpu", "cpus, custom"),
        ({"models": [{"batching": {"x": 1}}]}, "args.models[0].batching.x", "max_batch_tokens"),
        ({"gateway": {"auth": {"key": "k"}}}, "args.gateway.auth.key", "keys_env, mode"),
        ({"router": {"replica": 2}}, "args.router.replica", "max_ongoing_requests, replicas"),
        (
            {"scheduling": {"classes": [{"name": "a", "tier": "b"}], "default_class": "a"}},
            "args.scheduling.classes[0].tier",
            "queue_timeout_s, tiers",
        ),
    ],
)
def test_an_unknown_field_is_refused_with_those_known_there(
    args: dict[str, Any], path: str, allowed: str
) -> None:
    error = refusal(args)
    assert error.path == path
    assert f"{path}: Extra inputs are not permitted (allowed: " in error.message
    assert allowed in error.message


@pytest.mark.parametrize(
    ("args", "path", "problem"),
    [
        ({"models": [{"shards": -1}]}, "args.models[0].shards", "greater than or equal to 0"),
        ({"models": [{"dtype": "int4"}]}, "args.models[0].dtype", "'auto', 'float32', 'bfloat16'"),
        ({"models": []}, "args.models", "at least 1 item"),
        (
            {"models": [{"tensor_parallel": 2, "deterministic": True}]},
            "args.models[0]",
            "deterministic needs tensor_parallel 1",
        ),
        (
            {"models": [{"tensor_parallel": 2, "dtype": "int8"}]},
            "args.models[0]",
            "dtype int8 needs tensor_parallel 1",
        ),
        (
            {"models": [{"tensor_parallel": 2, "resources": {"mig_profile": "1g.5gb"}}]},
            "args.models[0]",
            "mig_profile needs tensor_parallel 1",
        ),
        (
            {"models": [{"tensor_parallel": 2, "resources": {"gpus": 1}}]},
            "args.models[0]",
            "resources.gpus must be 2, as tensor_parallel, or 0",
        ),
        ({"models": [{"source": ""}]}, "args.models[0].source", "at least 1 character"),
        (
            {"models": [{"cache": {"block_size": "many"}}]},
            "args.models[0].cache.block_size",
            "valid integer",
        ),
        (
            {"models": [{"cache": {"memory_fraction": 1.5}}]},
            "args.models[0].cache.memory_fraction",
            "less than or equal to 0.95",
        ),
        (
            {"models": [{"cache": {"host_gib": -1}}]},
            "args.models[0].cache.host_gib",
            "greater than or equal to 0",
        ),
        (
            {"models": [{"cache": {"host_gib": 1, "prefix_caching": False}}]},
            "args.models[0].cache",
            "host_gib needs prefix_caching",
        ),
        (
            {"models": [{"cache": {"folder": {"path": "/p", "gib": 1}, "host_gib": 0}}]},
            "args.models[0].cache",
            "folder needs prefix_caching and host_gib",
        ),
        (
            {"models": [{"cache": {"folder": {"path": "/p"}}}]},
            "args.models[0].cache.folder.gib",
            "Field required",
        ),
        (
            {"models": [{"tensor_parallel": 2, "cache": {"folder": {"path": "/p", "gib": 1}}}]},
            "args.models[0]",
            "cache.folder needs tensor_parallel 1",
        ),
        (
            {"models": [{"cache": {"high_water": 85}}]},
            "args.models[0].cache.high_water",
            "less than or equal to 1",
        ),
        (
            {"models": [{"cache": {"high_water": 0.6}}]},
            "args.models[0].cache",
            "low_water must not be above high_water",
        ),
        (
            {"models": [{"tensor_parallel": 2, "cache": {"host_gib": 1}}]},
            "args.models[0]",
            "cache.host_gib needs tensor_parallel 1",
        ),
        ({"gateway": {"auth": {"mode": "open"}}}, "args.gateway.auth.mode", "'keys' or 'none'"),
        ({"gateway": "on"}, "args.gateway", "valid dictionary"),
        ({"scheduling": {"default_class": "P9"}}, "args.scheduling", "one of ['P0', 'P1', 'P2']"),
        ({"models": [{"name": "a"}, {"name": "a"}]}, "args", "model names must differ"),
        (
            {"scheduling": {"classes": [{"name": "P1"}, {"name": "P1"}]}},
            "args.scheduling",
            "class names must differ",
        ),
        (
            {"scheduling": {"classes": [{"name": "P1", "tiers": ["a"]}, {"name": "a"}]}},
            "args.scheduling",
            "must mean one class only",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed_and_what_was_given(
    args: dict[str, Any], path: str, problem: str
) -> None:
    error = refusal(args)
    assert error.path == path
    assert f"  {path}: " in error.message
    assert problem in error.message
    assert "(got " in error.message


def test_every_wrong_field_is_named_not_only_the_first() -> None:
    error = refusal({"models": [{"shards": -1, "x": 1}], "gateway": {"replicas": 0}})
    for path in ("args.models[0].shards", "args.models[0].x", "args.gateway.replicas"):
        assert f"  {path}: " in error.message
    assert len(error.message.splitlines()) == 4


@pytest.mark.parametrize(
    ("autoscaling", "path"),
    [
        ({}, "args.models[0].autoscaling.max_shards"),
        ({"max_shards": 0}, "args.models[0].autoscaling.max_shards"),
        ({"min_shards": 3, "max_shards": 2}, "args.models[0].autoscaling"),
        ({"max_shards": 2, "growth": 1}, "args.models[0].autoscaling.growth"),
    ],
)
def test_wrong_bounds_of_autoscaling_are_refused(autoscaling: dict[str, Any], path: str) -> None:
    assert refusal({"models": [{"autoscaling": autoscaling}]}).path == path


@pytest.mark.parametrize(("shards", "first"), [(1, 2), (3, 3), (9, 4)])
def test_the_first_number_of_shards_lies_within_the_bounds(shards: int, first: int) -> None:
    bounds = {"min_shards": 2, "max_shards": 4}
    config = parse_config({"models": [{"shards": shards, "autoscaling": bounds}]})
    assert config.models[0].first_shards == first
