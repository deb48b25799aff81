"""Refuses bodies beyond the limit, by their declared length or as they turn out."""

from __future__ import annotations

from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.errors import RequestTooLarge
from deployments.faults import fault_response


class BodyLimit:
    """Plain ASGI that leaves `send` alone, so that streamed tokens cost nothing here."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            return await fault_response(too_large())(scope, receive, send)
        return await self._app(scope, self._counted(receive), send)

    def _counted(self, receive: Receive) -> Receive:
        left = self._max_bytes

        async def counted() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                # The one exception that FastAPI lets pass while it reads a body.
                raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return message

        return counted


def too_large() -> RequestTooLarge:
    return RequestTooLarge("the body is larger than this server accepts")
