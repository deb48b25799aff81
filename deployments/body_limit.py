"""Refuses bodies beyond the limit, by their declared length or as they turn out, and slow ones."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cluster.config import GatewayConfig
from cluster.errors import RequestTooLarge
from deployments.faults import fault_response


class BodyLimit:
    """Plain ASGI that leaves `send` alone, so that streamed tokens cost nothing here."""

    def __init__(self, app: ASGIApp, config: GatewayConfig) -> None:
        self._app = app
        self._max_bytes = config.max_body_bytes
        self._timeout_s = config.body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            return await fault_response(too_large(self._max_bytes))(scope, receive, send)
        return await self._app(scope, self._bounded(receive), send)

    def _bounded(self, receive: Receive) -> Receive:
        left, whole = self._max_bytes, False
        deadline = asyncio.get_running_loop().time() + self._timeout_s

        async def bounded() -> Message:
            nonlocal left, whole
            if whole:  # what follows is the client leaving, whenever that is
                return await receive()
            message = await self._in_time(receive, deadline)
            whole = not message.get("more_body", False)
            left -= len(message.get("body", b""))
            if left < 0:
                raise TooLarge(self._max_bytes)
            return message

        return bounded

    async def _in_time(self, receive: Receive, deadline: float) -> Message:
        try:
            async with asyncio.timeout_at(deadline):
                return await receive()
        except TimeoutError:
            raise HTTPException(
                HTTPStatus.REQUEST_TIMEOUT,
                f"the body was not complete after {self._timeout_s:g} s",
                {"connection": "close"},  # the rest of it, should it come, is no next request
            ) from None


class TooLarge(HTTPException):
    """Raised while a body is read: the one kind of exception that frameworks let pass there."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        self.max_bytes = max_bytes


def too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"the body is larger than the {max_bytes} bytes that this server takes")
