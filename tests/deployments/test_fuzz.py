"""Anything that the documented API allows, and much it does not, finds no failure of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from deployments.routes import create_app
from tests.deployments.scripted import ScriptedTokens, saying
from tests.deployments.world import MODEL, make_gateway

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture
def documented(folder: Path) -> Any:
    """The API of a gateway whose only model is documented, so that requests get far."""
    app = create_app(make_gateway(folder, ScriptedTokens(saying([65, 66, 1]))))
    for body in ("ChatRequest", "CompletionRequest"):
        fields = app.openapi()["components"]["schemas"][body]["properties"]
        fields["model"]["enum"] = [MODEL]
        del fields["deadline_s"]  # 1e-122 s are rightly answered by a 503
    return schemathesis.openapi.from_asgi("/openapi.json", app)


ROUTES = [
    ("/v1/chat/completions", "POST", GenerationMode.POSITIVE),
    ("/v1/chat/completions", "POST", GenerationMode.NEGATIVE),
    ("/v1/completions", "POST", GenerationMode.POSITIVE),
    ("/v1/completions", "POST", GenerationMode.NEGATIVE),
    ("/v1/models/{name}", "GET", GenerationMode.POSITIVE),
]


@pytest.mark.parametrize(("path", "method", "mode"), ROUTES)
def test_no_request_finds_a_failure_of_ours(
    documented: Any, path: str, method: str, mode: GenerationMode
) -> None:
    @settings(
        max_examples=120,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=documented[path][method].as_strategy(generation_mode=mode))
    def explore(case: schemathesis.Case) -> None:
        case.call_and_validate(checks=CHECKS)

    explore()
