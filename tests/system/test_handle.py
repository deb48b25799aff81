"""The Python handle, from another process of the cluster."""

from __future__ import annotations

from typing import Any

import pytest
import ray
from ray import serve

from cluster.errors import ContextTooLong, InvalidRequest, ModelNotFound
from deployments.handle import GenerateRequest, Generation, GenerationDelta
from tests.system.application import MODEL, NAME, Application

pytestmark = pytest.mark.slow


def generate(request: GenerateRequest) -> Generation:
    result: Generation = serve.get_app_handle(NAME).generate.remote(request).result()
    return result


def stream(request: GenerateRequest) -> list[GenerationDelta]:
    handle = serve.get_app_handle(NAME).options(stream=True)
    return list(handle.stream.remote(request))


def elsewhere(call: Any, request: GenerateRequest) -> Any:
    """`call` in another process of the cluster."""
    return ray.get(ray.remote(num_cpus=0)(call).remote(request))


def test_a_handle_generates_whole_and_in_pieces(application: Application) -> None:
    request = GenerateRequest(prompt="One fish, two", max_tokens=12, temperature=0, n=2)
    whole = elsewhere(generate, request)
    pieces = elsewhere(stream, request)
    assert whole.model == MODEL
    assert whole.usage.completion_tokens == 24
    for choice, told in enumerate(whole.choices):
        assert "".join(piece.text for piece in pieces if piece.choice == choice) == told.text
    assert pieces[-1].usage is not None
    assert pieces[-1].usage.completion_tokens == 24


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"prompt": "x", "model": "nobody"}, ModelNotFound),
        ({"prompt": "fish " * 2000}, ContextTooLong),
        ({"prompt": [10**6]}, InvalidRequest),
        ({"prompt": "x", "n": 99}, InvalidRequest),
    ],
)
def test_a_handle_raises_the_errors_that_http_answers(
    application: Application, fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        elsewhere(generate, GenerateRequest(**fields))
