"""The config that an operator edits is one that Serve and Shoal both take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from cluster.config import ShoalConfig, parse_config
from cluster.frozen import Frozen

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "ray-config.yaml"
REFERENCE = ROOT / "docs" / "configuration.md"


@pytest.fixture
def shipped() -> dict[str, Any]:
    return dict(yaml.safe_load(SHIPPED.read_text()))


def test_the_shipped_config_is_one_application_in_serves_own_schema(
    shipped: dict[str, Any],
) -> None:
    schema = ServeDeploySchema.model_validate(shipped)
    assert [app.name for app in schema.applications] == ["shoal"]
    assert schema.applications[0].import_path == "deployments.app:build"
    assert (schema.http_options.host, schema.http_options.port) == ("127.0.0.1", 8000)


def test_the_shipped_args_spell_out_the_defaults(shipped: dict[str, Any]) -> None:
    assert parse_config(shipped["applications"][0]["args"]) == ShoalConfig()


def test_every_field_stands_in_the_reference() -> None:
    fields = [name for part in Frozen.__subclasses__() for name in part.model_fields]
    reference = REFERENCE.read_text()
    assert [name for name in fields if not re.search(rf"\b{name}\b", reference)] == []


def test_the_shipped_user_config_wants_the_shards_of_the_models_there_are(
    shipped: dict[str, Any],
) -> None:
    app = shipped["applications"][0]
    (fleet,) = app["deployments"]
    wanted = {model.name: model.shards for model in parse_config(app["args"]).models}
    assert (fleet["name"], fleet["user_config"]) == ("Fleet", {"shards": wanted})
