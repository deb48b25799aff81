"""Errors to statuses, in one place: what a client sees of each branch of the error tree."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from starlette.responses import Response

from cluster.errors import (
    BudgetExhausted,
    CapacityError,
    ContextTooLong,
    DeadlineExceeded,
    FaultError,
    InvalidRequest,
    ModelNotFound,
    NotAuthenticated,
    NotReady,
    NotRemembered,
    OperatorError,
    QueueFull,
    RequestError,
    RequestTooLarge,
    ShoalError,
    ShuttingDown,
    UnsupportedField,
)


class Verdict(NamedTuple):
    """How one kind of error looks on the wire."""

    status: int
    type: str
    code: str | None


VERDICTS: Mapping[type[ShoalError], Verdict] = {
    UnsupportedField: Verdict(400, "invalid_request_error", "unsupported_parameter"),
    ContextTooLong: Verdict(400, "invalid_request_error", "context_length_exceeded"),
    InvalidRequest: Verdict(400, "invalid_request_error", None),
    NotAuthenticated: Verdict(401, "authentication_error", "invalid_api_key"),
    NotRemembered: Verdict(404, "invalid_request_error", "not_found"),
    ModelNotFound: Verdict(404, "invalid_request_error", "model_not_found"),
    RequestTooLarge: Verdict(413, "invalid_request_error", "request_too_large"),
    RequestError: Verdict(400, "invalid_request_error", None),
    QueueFull: Verdict(429, "rate_limit_error", "queue_full"),
    BudgetExhausted: Verdict(429, "rate_limit_error", "rate_limit_exceeded"),
    NotReady: Verdict(503, "server_error", "not_ready"),
    DeadlineExceeded: Verdict(503, "server_error", "deadline_exceeded"),
    ShuttingDown: Verdict(503, "server_error", "shutting_down"),
    CapacityError: Verdict(503, "server_error", "overloaded"),
    OperatorError: Verdict(500, "server_error", "misconfigured"),
    FaultError: Verdict(500, "server_error", "internal_error"),
    ShoalError: Verdict(500, "server_error", "internal_error"),
}


def verdict(error: ShoalError) -> Verdict:
    """The entry of the nearest ancestor of the error's class."""
    return next(VERDICTS[kind] for kind in type(error).__mro__ if kind in VERDICTS)


def error_body(
    message: str, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """OpenAI's error body."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def fault_body(error: ShoalError) -> dict[str, Any]:
    """The body for `error`; what only the operator can mend is not told to strangers."""
    told = error.message
    if isinstance(error, OperatorError):
        told = "the server is not configured rightly; its operator finds the reason in the log"
    _, kind, code = verdict(error)
    return error_body(told, kind, _param(error), code)


def fault_headers(error: ShoalError) -> dict[str, str]:
    """Retry-After in whole seconds, rounded up, for whoever should come back later."""
    if isinstance(error, CapacityError):
        return {"retry-after": str(max(1, math.ceil(error.retry_after_s)))}
    if isinstance(error, NotAuthenticated):
        return {"www-authenticate": "Bearer"}
    return {}


def error_response(
    status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    """`body` as JSON in pure ASCII, since a message may quote what UTF-8 cannot encode."""
    return Response(json.dumps(body), status, headers, media_type="application/json")


def fault_response(error: ShoalError) -> Response:
    return error_response(verdict(error).status, fault_body(error), fault_headers(error))


def _param(error: ShoalError) -> str | None:
    if isinstance(error, InvalidRequest):
        return error.param
    return "model" if isinstance(error, ModelNotFound) else None
