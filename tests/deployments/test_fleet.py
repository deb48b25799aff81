"""The settings an operator may change while the fleet runs, and what its shell does not load."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from ray.exceptions import RayActorError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, ServeStatus

from cluster.config import parse_settings
from cluster.errors import ConfigError
from deployments.fleet import is_to_stay


def test_wanted_shards_are_read_by_model() -> None:
    assert parse_settings({"shards": {"a": 2, "b": 0}}, ["a", "b"]).shards == {"a": 2, "b": 0}


@pytest.mark.parametrize(
    ("user_config", "path"),
    [
        ({"shards": {"a": -1}}, "user_config.shards.a"),
        ({"shards": {"a": "many"}}, "user_config.shards.a"),
        ({"shards": 3}, "user_config.shards"),
        ({"shardz": {"a": 1}}, "user_config.shardz"),
        ({"shards": {"nope": 1}}, "user_config.shards.nope"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_path(user_config: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError, match=path) as refused:
        parse_settings(user_config, ["a"])
    assert refused.value.path == path


def test_how_many_shards_an_autoscaled_model_has_is_not_for_a_setting_to_say() -> None:
    with pytest.raises(ConfigError, match="autoscaling decides"):
        parse_settings({"shards": {"a": 2}}, ["a", "b"], autoscaled=["a"])
    assert parse_settings({"shards": {"b": 2}}, ["a", "b"], autoscaled=["a"]).shards == {"b": 2}


def test_the_owner_of_the_shards_does_not_load_torch() -> None:
    program = "import sys, deployments.fleet; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def told(*statuses: ApplicationStatus) -> ServeStatus:
    """What Serve says of an application called as here, if it knows one."""
    each = [
        ApplicationStatusOverview(status=one, message="", last_deployed_time_s=0, deployments={})
        for one in statuses
    ]
    return ServeStatus(applications=dict(zip(["shoal"], each, strict=False)))


@pytest.mark.parametrize(
    ("statuses", "stays"),
    [
        ((ApplicationStatus.RUNNING,), True),
        ((ApplicationStatus.DEPLOYING,), True),
        ((ApplicationStatus.DELETING,), False),
        ((), False),
    ],
)
async def test_the_actors_stay_as_long_as_the_application(
    statuses: tuple[ApplicationStatus, ...], stays: bool
) -> None:
    assert await is_to_stay("shoal", lambda: told(*statuses)) is stays


@pytest.mark.parametrize("silence", [RayActorError(), RayServeException("gone"), TimeoutError()])
async def test_where_serve_does_not_answer_the_actors_stay(silence: Exception) -> None:
    def ask() -> ServeStatus:
        raise silence

    assert await is_to_stay("shoal", ask)
