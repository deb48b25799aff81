"""A config that cannot be served is refused before anything starts, naming the place."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest

from cluster.errors import ConfigError
from deployments.app import build
from scripts.serve_config import DEPLOYMENTS as DEPLOYMENT_NAMES
from scripts.serve_config import ServeConfig, read_serve_config

OURS = "applications: [{name: x, import_path: deployments.app:build, route_prefix: /llm, args: {}}]"


def read(tmp_path: Path, content: str, port: int | None = None) -> ServeConfig:
    path = tmp_path / "config.yaml"
    path.write_text(content)
    return read_serve_config(path, port)


def test_the_port_given_is_put_in_place_of_the_configs(tmp_path: Path) -> None:
    assert read(tmp_path, "http_options: {port: 9000}\n" + OURS).port == 9000
    assert read(tmp_path, "http_options: {port: 9000}\n" + OURS, port=7000).port == 7000
    assert read(tmp_path, OURS).port == 8000


def test_the_application_is_known_by_its_own_name_and_route(tmp_path: Path) -> None:
    config = read(tmp_path, OURS)
    assert (config.app, config.route) == ("x", "/llm")


def test_port_0_is_one_that_is_free_and_the_address_tells_it(tmp_path: Path) -> None:
    given, own = read(tmp_path, OURS, port=0), read(tmp_path, "http_options: {port: 0}\n" + OURS)
    for config in (given, own):
        assert config.port not in (0, 8000)
        assert config.url == f"http://127.0.0.1:{config.port}/llm"
        socket.create_server(("127.0.0.1", config.port)).close()


def test_the_address_names_the_host_that_is_listened_on(tmp_path: Path) -> None:
    config = read(tmp_path, "http_options: {host: '::1', port: 9000}\n" + OURS)
    assert config.url == "http://[::1]:9000/llm"


DEPLOYMENTS = [
    ("{name: Flet}", r"\.name: no such deployment 'Flet' \(allowed: Fleet, Gateway, Router\)"),
    ("{name: Router, replicas: 2}", r"\.replicas: unknown field \(allowed: .*num_replicas"),
    ("{name: Router, num_replicas: 0}", r"\.num_replicas.*: .*greater than 0"),
    ("{name: Router, user_config: {}}", r"\.user_config: Router has no settings"),
    ("{name: Fleet, num_replicas: 2}", r"\.num_replicas: the Fleet has exactly one replica"),
    ("{name: Fleet, user_config: {shard: 1}}", r"^.*user_config\.shard: .*\(allowed: shards\)"),
    ("{name: Fleet, user_config: {shards: {nope: 1}}}", r"shards\.nope: no such model \(allowed:"),
    ("{name: Fleet, ray_actor_options: {cpus: 1}}", r"\.ray_actor_options\.cpus: unknown field"),
]


@pytest.mark.parametrize(("deployment", "reason"), DEPLOYMENTS)
def test_a_deployment_that_would_fail_later_is_refused_by_its_place(
    tmp_path: Path, deployment: str, reason: str
) -> None:
    content = OURS.replace("args: {}", f"args: {{}}, deployments: [{deployment}]")
    with pytest.raises(ConfigError, match=re.compile(reason, re.DOTALL)) as refused:
        read(tmp_path, content)
    assert refused.value.path.startswith(("applications[0].deployments[0].", "user_config."))


def test_the_deployments_known_are_those_that_are_built() -> None:
    app = build({})
    router = app._bound_deployment.init_args[1]
    fleet = router._bound_deployment.init_args[1]
    built = {node._bound_deployment.name for node in (app, router, fleet)}
    assert built == set(DEPLOYMENT_NAMES)


def test_the_configuration_that_is_shipped_is_not_refused() -> None:
    assert read_serve_config(Path(__file__).parents[2] / "ray-config.yaml").port == 8000


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml cannot be read: No such file"):
        read_serve_config(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not YAML"),
        ("- a\n- b", "must be a YAML mapping"),
        ("", "must be a YAML mapping"),
        ("applications: [{import_path: other:app}]", "exactly one application"),
        ("applications: []", "it has 0"),
        ("applications: 3", "`applications` must be a list of mappings"),
        ("http_options: 8000\n" + OURS, "`http_options` must be a mapping"),
        ("http_options: {port: high}\n" + OURS, "port must be a number from 1 to 65535"),
        ("http_options: {port: true}\n" + OURS, "port must be a number from 1 to 65535"),
        ("http_options: {port: -1}\n" + OURS, "port must be a number from 1 to 65535"),
        ("http_options: {hots: 1}\n" + OURS, r"http_options\.hots: unknown field \(allowed: host,"),
        ("http_options: {host: 1}\n" + OURS, r"http_options\.host: Input should be a .*string"),
        ("http_option: {port: 1}\n" + OURS, r"http_option: unknown field .*http_options"),
        (OURS.replace("/llm", "null"), r"applications\[0\]\.route_prefix: must be a path"),
        (OURS.replace("args: {}", "arg: {}"), r"applications\[0\]\.arg: unknown field .*args,"),
        (OURS.replace("args: {}", "args: {model: x}"), r"args\.model: Extra inputs .*allowed: "),
        (OURS.replace("args: {}", "args: 7"), "args: Input should be a valid dictionary"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    tmp_path: Path, content: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        read(tmp_path, content)


def test_a_folder_for_pages_is_refused_by_its_place_where_its_package_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = (
        "{models: [{name: a}, {name: b, cache: {host_gib: 1, folder: {path: /tmp/p, gib: 1}}}]}"
    )
    wanted = OURS.replace("args: {}", f"args: {asking}")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "lz4", None)
        with pytest.raises(ConfigError, match="needs lz4") as caught:
            read(tmp_path, wanted)
        assert caught.value.path == "args.models[1].cache.folder"
        assert len(read(tmp_path, OURS).shoal.models) == 1
    (tmp_path / "lz4.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert len(read(tmp_path, wanted).shoal.models) == 2
