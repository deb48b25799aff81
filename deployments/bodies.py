"""JSON bodies, read and checked where that keeps nobody else waiting."""

from __future__ import annotations

import copy
import gc
import json
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from email.message import Message
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from cluster.errors import InvalidRequest
from deployments.aside import Aside
from deployments.parameters import Wire

LARGE_BODY = 64 * 1024
"""Bytes from which a body leaves the event loop for a thread; the worst of them take 10 ms."""

_parsing = Aside("parsing", threads=1)
"""One at a time, as parsing lets no other thread run: between two bodies the loop has its turn."""

CHARSETS = {None, "utf-8", "utf8", "us-ascii"}


class JsonRoute(APIRoute):
    """A route that finds its body checked already; FastAPI would do that on the event loop."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        kind: type[Wire] = self.body_field.field_info.annotation  # type: ignore[assignment]

        async def handle_checked(request: Request) -> Response:
            return await handle(_Checked(request, await read_json(request, kind)))

        return handle_checked


class _Checked(Request):
    """A request whose JSON is the model that it became."""

    def __init__(self, request: Request, checked: Wire) -> None:
        super().__init__(request.scope, request.receive)
        self._checked = checked

    async def body(self) -> bytes:
        return b"{}"  # only asked whether there is any

    async def json(self) -> Any:
        return self._checked


async def read_json(request: Request, kind: type[Wire]) -> Wire:
    """The body as a `kind`.

    Raises InvalidRequest, or HTTPException for what is no JSON in UTF-8, sent as it is.
    """
    _require_plain_json(request)
    raw = await request.body()
    if not raw:
        raise InvalidRequest("the body is missing")
    if len(raw) < LARGE_BODY:
        return parse(raw, kind)
    return await _parsing.run(parse, raw, kind)


def parse(raw: bytes, kind: type[Wire]) -> Wire:
    """Raises InvalidRequest that says where the JSON ends to be some, or which field is wrong."""
    with _no_collections():
        try:
            return kind.model_validate(_load(raw))
        except InvalidRequest as error:
            # A copy without its traceback, which would keep the body until the event loop frees it.
            refusal = copy.copy(error)
    raise refusal


def _load(raw: bytes) -> Any:
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        reason = f"the body is not UTF-8, at byte {error.start}"
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")  # as some of Python's messages end
        reason = f"the body is not valid JSON: {what} at {error.pos}"
    except RecursionError:
        reason = "the body is not valid JSON here: it is nested too deeply"
    except ValueError:
        reason = "the body is not valid JSON here: a number is too long"
    raise InvalidRequest(reason)


def _require_plain_json(request: Request) -> None:
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding != "identity":
        detail = f"a body with `Content-Encoding: {coding}` is not understood; send it plain"
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)
    declared = Message()
    declared["content-type"] = request.headers.get("content-type", "")
    kind = declared.get_content_type()
    if not (kind == "application/json" or (kind[:12] == "application/" and kind[-5:] == "+json")):
        raise InvalidRequest("the body must be a JSON object, sent as application/json")
    charset = declared.get_content_charset()
    if charset not in CHARSETS:
        detail = f"a body in {charset} is not understood; send it in UTF-8"
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, detail)


@contextmanager
def _no_collections() -> Iterator[None]:
    """A million new lists would have Python look for garbage among them again and again.

    Parsing 8 MB of them takes 0.25 s instead of 1.2 s, all under Python's lock.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
