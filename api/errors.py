"""Every answer that is not a success has one shape: ``{"error": {"type", "message", "param", "code"}}``.

Under ``/v1/messages`` it is the one that Anthropic's clients read: ``{"type": "error", "error": {"type", "message"}}``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from math import ceil
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from envs.errors import BadChange, EnvError
from envs.errors import quoted as quoted_up_to
from online_agent.errors import BadInput, Busy, OnlineAgentError
from online_agent.telemetry.logging import get_logger

log = get_logger(__name__)

MAX_QUOTED_CHARS = 200
ANTHROPIC_PATHS = "/v1/messages"
DEFECT = "internal error; the server's log has the details"

_TYPE_OF_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "unavailable_error",
}


class ShuttingDown(Busy):
    """Asked for new work after SIGTERM: another process will take it."""

    code, http_status = "shutting_down", 503


class ErrorBody(BaseModel):
    """What went wrong. ``param`` names the request field; ``code`` is stable and meant for programs."""

    type: str = Field(examples=["invalid_request_error"])
    message: str = Field(examples=["reward: Input should be less than or equal to 1 (got 7.0)"])
    param: str | None = Field(examples=["reward"])
    code: str = Field(examples=["bad_input"])


class ErrorAnswer(BaseModel):
    error: ErrorBody


class AnthropicErrorBody(BaseModel):
    type: str = Field(examples=["invalid_request_error"])
    message: str


class AnthropicErrorAnswer(BaseModel):
    """The same, as Anthropic's clients read it."""

    type: str = "error"
    error: AnthropicErrorBody


def _type_of(status: int) -> str:
    return _TYPE_OF_STATUS.get(status, "invalid_request_error" if status < 500 else "server_error")


_ANTHROPIC_TYPE = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_response(
    status: int,
    message: str,
    code: str,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    path: str = "",
) -> Response:
    """``path`` decides the shape: Anthropic's where its clients call."""
    if path.startswith(ANTHROPIC_PATHS):
        content = anthropic_error(status, message)
    else:
        body = ErrorAnswer(error=ErrorBody(type=_type_of(status), message=message, param=param, code=code))
        content = body.model_dump()
    return Response(orjson.dumps(content), status, dict(headers or {}), "application/json")


def anthropic_error(status: int, message: str) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPE.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def error_body(error: OnlineAgentError) -> dict[str, Any]:
    """What stands in the answer for one of our own errors."""
    kind = _type_of(error.http_status)
    body = ErrorBody(type=kind, message=error.message, param=error.param, code=error.code)
    return ErrorAnswer(error=body).model_dump()


def answer_for(error: OnlineAgentError, path: str = "") -> Response:
    """The HTTP answer for one of our own errors, with Retry-After where a retry is worth it."""
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, ceil(error.retry_after_s)))
    elif error.http_status in (429, 503):
        headers["Retry-After"] = "1"
    if error.http_status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return error_response(error.http_status, error.message, error.code, error.param, headers, path=path)


def describe_invalid(errors: Sequence[Mapping[str, Any]]) -> BadInput:
    """The first thing wrong with a request: the field by its dotted name, the reason, and the value that was sent."""
    first = errors[0]
    where = [str(part) for part in first["loc"]]
    param = ".".join(where[1:]) or where[0]
    value = "" if first["type"] == "missing" else f" (got {quoted(first.get('input'))})"
    return BadInput(f"{param}: {first['msg']}{value}", param=param)


def quoted(value: object) -> str:
    """The value as a person would type it, cut to a length that is safe to send back."""
    return quoted_up_to(value, MAX_QUOTED_CHARS)


def _call(request: Request) -> str:
    return f"{request.method} {request.url.path}"


async def _on_ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, OnlineAgentError)
    if error.http_status >= 500:
        log.warning("request failed", call=_call(request), code=error.code, reason=error.message)
    return answer_for(error, request.url.path)


async def _on_envs(request: Request, error: Exception) -> Response:
    """A bad change is the caller's; a sandbox that could not work is an outage."""
    if isinstance(error, BadChange):
        return answer_for(BadInput(str(error)))
    log.error("sandbox failed", call=_call(request), reason=str(error))
    return error_response(503, str(error), "sandbox_unavailable", headers={"Retry-After": "1"})


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return answer_for(describe_invalid(error.errors()), request.url.path)


async def _on_http(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in our shape."""
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    message = f"{request.method} {quoted(request.url.path)}: {error.detail or phrase}"
    code = phrase.lower().replace(" ", "_")
    return error_response(error.status_code, message, code, headers=error.headers, path=request.url.path)


async def _on_bug(request: Request, error: Exception) -> Response:
    """A defect of ours: the caller learns that, and only that; the log has the traceback."""
    log.error("a defect", call=_call(request), exc_info=error)
    return error_response(500, DEFECT, OnlineAgentError.code, path=request.url.path)


def install(app: FastAPI) -> None:
    app.add_exception_handler(OnlineAgentError, _on_ours)
    app.add_exception_handler(EnvError, _on_envs)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_bug)
