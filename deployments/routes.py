"""The HTTP routes of a gateway, as a FastAPI application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, TypeVar

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from cluster.config import GatewayConfig
from cluster.errors import NotReady, ShoalError
from cluster.plain import to_json
from deployments.bodies import JsonRoute
from deployments.body_limit import BodyLimit, TooLarge, too_large
from deployments.doorkeeper import TENANT, Doorkeeper
from deployments.explaining import add_explanations
from deployments.faults import error_body, error_response, fault_response, verdict
from deployments.gateway import Gateway, usage_of
from deployments.intake import Call
from deployments.openai import ApiRequest, ChatRequest, CompletionRequest
from deployments.refusals import refuse
from deployments.responses import (
    ChatFormat,
    CompletionFormat,
    Envelope,
    Format,
    compact,
    model_card,
)
from deployments.schemas import ChatCompletion, Completion, ErrorBody, ModelCard, ModelList
from deployments.sse import DONE, EventStream

CLIENT_CLOSED_REQUEST = 499
NOT_READY = "requests would not be answered now; who asks with a key is told why"
"""For strangers."""

FAULTS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorBody, "description": "The caller must change something."},
    "5XX": {"model": ErrorBody, "description": "The server cannot answer."},
}

BEARER = Depends(HTTPBearer(auto_error=False, description="An API key, where keys are asked for."))
"""For /docs only: the Doorkeeper has looked at the key before any route is."""

T = TypeVar("T")
logger = logging.getLogger(__name__)


def create_app(gateway: Gateway) -> FastAPI:
    """The application, complete: routes, keys, limits, and OpenAI's bodies for all errors."""
    app = FastAPI(
        title="Shoal",
        description="An OpenAI-compatible API over a shoal of KV-cache shards.",
        redoc_url=None,
        responses=FAULTS,
    )
    app.router.route_class = JsonRoute
    app.add_middleware(BodyLimit, config=gateway.config.gateway)
    app.add_middleware(Doorkeeper, keys=gateway.keys)
    _add_browsers(app, gateway.config.gateway)
    _add_error_handlers(app)
    _add_operations(app, gateway)
    add_explanations(app, gateway)
    _add_models(app, gateway)
    _add_generation(app, gateway)
    return app


def _add_browsers(app: FastAPI, config: GatewayConfig) -> None:
    """Before the Doorkeeper, since a browser's preflight bears no key."""
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),  # whatever the browser's client library adds
            expose_headers=("retry-after",),
        )


def _add_operations(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/health", summary="Alive")
    async def health() -> dict[str, str]:
        return {"status": "alive"}

    @app.get("/ready", summary="Would answer a request now", dependencies=[BEARER])
    async def ready(request: Request) -> dict[str, Any]:
        """Without a key only whether; with one also which models sleep or load, and what is
        missing."""
        readiness = await gateway.readiness()
        stranger = TENANT not in request.scope
        if readiness.obstacles:
            told = NOT_READY if stranger else "; ".join(readiness.obstacles)
            raise NotReady(told, retry_after_s=1.0)
        waited_for = {} if stranger else {"asleep": readiness.asleep, "loading": readiness.loading}
        return {"status": "ready", **waited_for}

    @app.get("/admin/stats", summary="The books of the scheduler and of every shard")
    async def stats() -> dict[str, Any]:
        return asdict(await gateway.outside.stats())

    @app.get("/admin/topology", summary="Nodes, CPUs, GPUs, slices, and what connects them")
    async def topology() -> Response:
        return Response(to_json(await gateway.outside.topology()), media_type="application/json")


def _add_models(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/v1/models", summary="The models served", dependencies=[BEARER])
    async def models() -> ModelList:
        cards = [model_card(name, gateway.started) for name in gateway.intake.models]
        return {"object": "list", "data": cards}

    # Names of models may hold slashes.
    @app.get("/v1/models/{name:path}", summary="One model", dependencies=[BEARER])
    async def model(name: str) -> ModelCard:
        return model_card(gateway.intake.model(name).name, gateway.started)


def _add_generation(app: FastAPI, gateway: Gateway) -> None:
    @app.post("/v1/chat/completions", responses=_answers(ChatCompletion), dependencies=[BEARER])
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        call = await gateway.intake.chat(body, request.scope[TENANT])
        form = ChatFormat(call.model.text, logprobs=body.logprobs)
        return await _answer(gateway, body, call, form, request)

    @app.post("/v1/completions", responses=_answers(Completion), dependencies=[BEARER])
    async def completions(body: CompletionRequest, request: Request) -> Response:
        call = await gateway.intake.complete(body, request.scope[TENANT])
        form = CompletionFormat(call.model.text, logprobs=body.logprobs is not None)
        return await _answer(gateway, body, call, form, request)


def _answers(model: type) -> dict[int | str, dict[str, Any]]:
    field = {"type": "string"}
    event = {"type": "object", "properties": {"event": field, "data": field}, "required": ["data"]}
    events = {"text/event-stream": {"schema": event}}
    return {200: {"model": model, "content": events, "description": "Whole, or a stream."}}


async def _answer(
    gateway: Gateway, body: ApiRequest, call: Call, form: Format, request: Request
) -> Response:
    created = int(gateway.outside.now())
    envelope = Envelope(
        call.call_id, created, call.model.name, form, streams_usage=body.streams_usage
    )
    if body.stream:
        events = _events(gateway, body, call, envelope)
        # Waiting for the first event lets a refusal still have its own status.
        first = await _unless_gone(request, _first(events))
        keep_alive_s = gateway.config.gateway.keep_alive_s
        return _gone() if first is None else EventStream(first, events, keep_alive_s)
    whole = await _unless_gone(request, _whole(gateway, call, envelope))
    return _gone() if whole is None else Response(whole, media_type="application/json")


async def _events(
    gateway: Gateway, body: ApiRequest, call: Call, envelope: Envelope
) -> AsyncGenerator[bytes, None]:
    async with aclosing(gateway.pieces(call)) as pieces:
        async for piece in pieces:
            event = envelope.event(piece)
            if event:
                yield event
    if body.streams_usage:
        yield envelope.usage_event(usage_of(call))
    yield DONE


async def _first(events: AsyncGenerator[bytes, None]) -> bytes:
    return await anext(events)


async def _whole(gateway: Gateway, call: Call, envelope: Envelope) -> bytes:
    async with aclosing(gateway.pieces(call)) as pieces:
        known = [piece async for piece in pieces]
    return compact(envelope.whole(known, usage_of(call)))


async def _unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`; None, and `work` cancelled, when the client leaves before."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        unfinished = {task for task in (working, leaving) if task.cancel()}
        if unfinished:
            await asyncio.wait(unfinished)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def _gone() -> Response:
    """Nobody reads it; access logs do."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


def _add_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ShoalError, _on_shoal_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_parameter)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_bug)


async def _on_shoal_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ShoalError)
    if verdict(error).status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.warning("%s %s: %s", request.method, request.url.path, error)
    return fault_response(error)


async def _on_invalid_parameter(request: Request, error: Exception) -> Response:
    """What FastAPI finds by itself; bodies are checked before it."""
    assert isinstance(error, RequestValidationError)
    return fault_response(refuse(error.errors()))


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """The client left while it still sent its body."""
    return _gone()


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, TooLarge):
        return fault_response(too_large(error.max_bytes))
    kind = "invalid_request_error"
    message = f"{error.detail}: {request.method} {request.url.path}"
    return error_response(error.status_code, error_body(message, kind), error.headers)


async def _on_bug(request: Request, error: Exception) -> Response:
    """The server logs the traceback itself; the client learns only that it is not to blame."""
    return error_response(
        500, error_body("the server failed", "server_error", None, "internal_error")
    )
