"""How a failure leaves the command line: one line and one of the documented exit codes."""

from __future__ import annotations

from online_agent.errors import (
    BadInput,
    Busy,
    ConfigError,
    Conflict,
    EngineUnavailable,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    OnlineAgentError,
    UnknownName,
)

FAILED, USAGE, UNREACHABLE, NOT_ALLOWED, NOT_FOUND, CONFLICT = 1, 2, 3, 4, 5, 6


class Unreachable(OnlineAgentError):
    """The service did not answer."""

    code = "unreachable"


class ApiError(OnlineAgentError):
    """The service answered with an error; ``http_status`` is its status."""

    def __init__(self, message: str, *, status: int, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.http_status = status


_BY_CLASS: tuple[tuple[type[OnlineAgentError], int], ...] = (
    (Unreachable, UNREACHABLE),
    (EngineUnavailable, UNREACHABLE),
    (NotAuthenticated, NOT_ALLOWED),
    (NotAllowed, NOT_ALLOWED),
    (UnknownName, NOT_FOUND),
    (NotFound, NOT_FOUND),
    (Conflict, CONFLICT),
    (Busy, CONFLICT),
    (BadInput, USAGE),
    (ConfigError, USAGE),
)
_BY_STATUS = {
    400: USAGE,
    401: NOT_ALLOWED,
    403: NOT_ALLOWED,
    404: NOT_FOUND,
    409: CONFLICT,
    413: USAGE,
    422: USAGE,
    429: CONFLICT,
    503: CONFLICT,
}


def exit_code(error: OnlineAgentError) -> int:
    if isinstance(error, ApiError):
        return _BY_STATUS.get(error.http_status, FAILED)
    return next((code for kind, code in _BY_CLASS if isinstance(error, kind)), FAILED)


def one_line(error: OnlineAgentError) -> str:
    return " ".join(str(error).split())
