"""Read the Serve config a person edits, and refuse it before anything is started."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.config import ShoalConfig, parse_config
from cluster.errors import ConfigError

BUILDER = "deployments.app:build"
DEFAULT_PORT = 8000
PORT_PATH = "http_options.port"


@dataclass(frozen=True)
class ServeConfig:
    """A Serve config as Ray takes it, and the Shoal application in it, parsed."""

    deploy: dict[str, Any]
    shoal: ShoalConfig
    app: str
    route: str

    @property
    def port(self) -> int:
        return int(self.deploy["http_options"]["port"])


def read_serve_config(path: Path, port: int | None = None) -> ServeConfig:
    """The config in `path`, with `port` in place of its own if given.

    Raises ConfigError for a file that cannot be read, is no YAML mapping or holds no Shoal
    application, and for whatever `parse_config` refuses in its `args`.
    """
    deploy = _mapping(path)
    _set_port(deploy, port)
    ours = [app for app in _applications(deploy) if app.get("import_path") == BUILDER]
    if len(ours) != 1:
        raise ConfigError(
            f"{path} must have exactly one application with import_path: {BUILDER},"
            f" it has {len(ours)}",
            "applications",
        )
    shoal = parse_config(ours[0].get("args", {}))
    name, route = ours[0].get("name", "default"), ours[0].get("route_prefix", "/")
    return ServeConfig(deploy, shoal, name, route.rstrip("/"))


def _set_port(deploy: dict[str, Any], port: int | None) -> None:
    options = deploy.setdefault("http_options", {})
    if not isinstance(options, dict):
        raise ConfigError("`http_options` must be a mapping", "http_options")
    chosen = port or options.get("port", DEFAULT_PORT)
    if not isinstance(chosen, int) or not 0 < chosen < 2**16:
        raise ConfigError(f"port must be a number from 1 to 65535, got {chosen!r}", PORT_PATH)
    options["port"] = chosen


def _applications(deploy: dict[str, Any]) -> list[dict[str, Any]]:
    found = deploy.get("applications", [])
    if not isinstance(found, list) or not all(isinstance(app, dict) for app in found):
        raise ConfigError("`applications` must be a list of mappings", "applications")
    return found


def _mapping(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", str(path)) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}", str(path)) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must be a YAML mapping with `applications`", str(path))
    return content
