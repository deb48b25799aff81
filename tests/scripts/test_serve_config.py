"""A config that cannot be served is refused before anything starts, naming the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.errors import ConfigError
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
        ("http_options: {port: 0}\n" + OURS, "port must be a number from 1 to 65535"),
        (OURS.replace("args: {}", "args: {model: x}"), r"args\.model: Extra inputs .*allowed: "),
        (OURS.replace("args: {}", "args: 7"), "args: Input should be a valid dictionary"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    tmp_path: Path, content: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        read(tmp_path, content)
