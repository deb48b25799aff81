"""Asks for a key before anything else of a request is looked at."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.errors import NotAuthenticated
from deployments.auth import ApiKeys
from deployments.faults import fault_response

OPEN_ROUTES = frozenset({"/health", "/ready"})
BROWSER_ROUTES = frozenset({"/docs", "/openapi.json"})
TENANT = "shoal.tenant"


class Doorkeeper:
    """Lets requests pass that bear a known key, and notes their tenant in the scope; strangers
    have none.

    Plain ASGI: it costs a streamed token nothing and hides no disconnect from the routes.
    """

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        route = _route(scope)
        browser = route in BROWSER_ROUTES
        try:
            scope[TENANT] = self._keys.tenant(Headers(scope=scope), basic=browser)
        except NotAuthenticated as error:
            if route in OPEN_ROUTES:  # which tell strangers less
                return await self._app(scope, receive, send)
            refusal = fault_response(error)
            if browser:
                refusal.headers["www-authenticate"] = 'Basic realm="Shoal: the key as password"'
            return await refusal(scope, receive, send)
        return await self._app(scope, receive, send)


def _route(scope: Scope) -> str:
    """The path below the prefix that the application is mounted at."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))
