"""Read the Serve config a person edits, and refuse it before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from ray.serve.schema import ServeDeploySchema

from cluster.config import ShoalConfig, parse_config, parse_settings
from cluster.errors import ConfigError
from scripts.ports import LOOPBACK, free_port

BUILDER = "deployments.app:build"
DEPLOYMENTS = ("Fleet", "Gateway", "Router")
DEFAULT_PORT = 8000
EVERY_INTERFACE = ("0.0.0.0", "::", "")
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

    @property
    def url(self) -> str:
        """Where this machine reaches the application."""
        host = self.deploy["http_options"].get("host", EVERY_INTERFACE[0])
        named = LOOPBACK if host in EVERY_INTERFACE else host
        return f"http://{f'[{named}]' if ':' in named else named}:{self.port}{self.route}"


def read_serve_config(path: Path, port: int | None = None) -> ServeConfig:
    """The config in `path`, with `port` in place of its own if given; 0: one that is free.

    Raises ConfigError for a file that cannot be read, is no YAML mapping or holds no Shoal
    application, for a field that Serve does not know or takes otherwise, for a deployment that
    Shoal has not, for what needs packages that are not here, and for whatever `parse_config` and
    `parse_settings` refuse.
    """
    deploy = _mapping(path)
    _set_port(deploy, port)
    place, ours = _our_application(deploy, path)
    shoal = parse_config(ours.get("args", {}))
    _refuse_if_any([*_serve_problems(deploy), *_missing_packages(shoal)])
    for index, deployment in enumerate(ours.get("deployments", [])):
        _check_deployment(deployment, f"{place}.deployments[{index}]", shoal)
    name, route = ours.get("name", "default"), ours.get("route_prefix", "/")
    if route is None:
        _refuse_if_any([(f"{place}.route_prefix", "must be a path (allowed: `/` or `/any`)")])
    return ServeConfig(deploy, shoal, name, route.rstrip("/"))


def _set_port(deploy: dict[str, Any], port: int | None) -> None:
    options = deploy.setdefault("http_options", {})
    if not isinstance(options, dict):
        raise ConfigError("`http_options` must be a mapping", "http_options")
    chosen = options.get("port", DEFAULT_PORT) if port is None else port
    if isinstance(chosen, bool) or not isinstance(chosen, int) or not 0 <= chosen < 2**16:
        raise ConfigError(
            f"{PORT_PATH} must be a number from 1 to 65535, or 0 for one that is free,"
            f" got {chosen!r}",
            PORT_PATH,
        )
    options["port"] = chosen or free_port()


def _our_application(deploy: dict[str, Any], path: Path) -> tuple[str, dict[str, Any]]:
    """Where the one application of ours stands, and it."""
    found = deploy.get("applications", [])
    if not isinstance(found, list) or not all(isinstance(app, dict) for app in found):
        raise ConfigError("`applications` must be a list of mappings", "applications")
    ours = [
        (f"applications[{index}]", app)
        for index, app in enumerate(found)
        if app.get("import_path") == BUILDER
    ]
    if len(ours) != 1:
        raise ConfigError(
            f"{path} must have exactly one application with import_path: {BUILDER},"
            f" it has {len(ours)}",
            "applications",
        )
    return ours[0]


def _serve_problems(deploy: dict[str, Any]) -> list[tuple[str, str]]:
    """Paths in the config that Serve would ignore or refuse, each with the reason."""
    problems = list(_unknown_fields(ServeDeploySchema, deploy, ""))
    try:
        ServeDeploySchema.model_validate(deploy)
    except ValidationError as error:
        for problem in error.errors(include_url=False):
            where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in problem["loc"])
            problems.append((where.lstrip("."), f"{problem['msg']} (got {problem['input']!r:.80})"))
    return problems


def _missing_packages(shoal: ShoalConfig) -> Iterator[tuple[str, str]]:
    """Shards would not load without."""
    for index, model in enumerate(shoal.models):
        if model.cache.folder is not None and find_spec("lz4") is None:
            yield (
                f"args.models[{index}].cache.folder",
                "needs lz4, which is not installed: pip install '.[folder]', Shoal's extra",
            )


def _unknown_fields(kind: type[BaseModel], data: Any, path: str) -> Iterator[tuple[str, str]]:
    """Serve's own schema lets them pass, for the sake of later versions."""
    if not isinstance(data, dict):
        return
    for name, value in data.items():
        place = f"{path}.{name}".lstrip(".")
        if name not in kind.model_fields:
            yield place, f"unknown field (allowed: {', '.join(sorted(kind.model_fields))})"
            continue
        inner = _schema_within(kind.model_fields[name].annotation)
        if inner is not None and isinstance(value, list):
            for index, item in enumerate(value):
                yield from _unknown_fields(inner, item, f"{place}[{index}]")
        elif inner is not None:
            yield from _unknown_fields(inner, value, place)


def _schema_within(annotation: Any) -> type[BaseModel] | None:
    """The schema in `Schema`, `Optional[Schema]` or `List[Schema]`, where it is a single one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = [found for found in map(_schema_within, get_args(annotation)) if found is not None]
    return inner[0] if len(inner) == 1 else None


def _refuse_if_any(problems: list[tuple[str, str]]) -> None:
    if problems:
        lines = [f"  {place}: {reason}" for place, reason in problems]
        raise ConfigError("the configuration is refused:\n" + "\n".join(lines), problems[0][0])


def _check_deployment(deployment: dict[str, Any], place: str, shoal: ShoalConfig) -> None:
    name = deployment["name"]
    if name not in DEPLOYMENTS:
        reason = f"no such deployment {name!r} (allowed: {', '.join(DEPLOYMENTS)})"
        _refuse_if_any([(f"{place}.name", reason)])
    settings = deployment.get("user_config")
    if name == "Fleet":
        if deployment.get("num_replicas", 1) != 1 or deployment.get("autoscaling_config"):
            reason = "the Fleet has exactly one replica (allowed: 1)"
            _refuse_if_any([(f"{place}.num_replicas", reason)])
        models = [model.name for model in shoal.models]
        autoscaled = [model.name for model in shoal.models if model.autoscaling]
        parse_settings(settings or {}, models, autoscaled)
    elif settings is not None:
        reason = f"{name} has no settings (allowed: for Fleet)"
        _refuse_if_any([(f"{place}.user_config", reason)])


def _mapping(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", str(path)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8", str(path)) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}", str(path)) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must be a YAML mapping with `applications`", str(path))
    return content
