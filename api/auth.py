"""Who is calling. The tenant comes from the key and from nowhere else.

Every path under ``/v1`` and ``/metrics`` needs a key, also a path that does not exist: the check stands before
routing and before the body is read. Scopes are a set; none implies another.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from api.errors import answer_for
from api.keys.limits import admit
from api.runtime import Runtime
from online_agent.errors import BadInput, Busy, NotAllowed, NotAuthenticated
from online_agent.store.records import KeyRecord
from online_agent.types import Scope


@dataclass(frozen=True, slots=True)
class Caller:
    tenant_id: str
    key_id: str
    scopes: frozenset[str]


class Authentication:
    """ASGI middleware: puts the Caller into the request's state, or answers 401 or, over a key's limit, 429 itself."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not needs_key(scope["path"]):
            await self.app(scope, receive, send)
            return
        try:
            runtime, headers = scope["app"].state.runtime, Headers(scope=scope)
            caller, key = await authenticate(runtime, secret_of(headers))
            await admit(runtime, key, scope["method"], scope["path"], headers)
        except (NotAuthenticated, BadInput, Busy) as error:
            await answer_for(error, scope["path"])(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        await self.app(scope, receive, send)


def needs_key(path: str) -> bool:
    return path.startswith("/v1/") or path in ("/v1", "/metrics")


def secret_of(headers: Headers) -> str:
    """The key in ``Authorization: Bearer`` or ``x-api-key``. Raises NotAuthenticated when there is none."""
    authorization = headers.get("authorization")
    if authorization is not None:
        scheme, _, secret = authorization.partition(" ")
        if scheme.lower() == "bearer" and secret.strip():
            return secret.strip()
        raise NotAuthenticated("Authorization must read 'Bearer <key>'", param="Authorization")
    secret = headers.get("x-api-key", "").strip()
    if not secret:
        raise NotAuthenticated("this call needs a key: send 'Authorization: Bearer <key>' or 'x-api-key'")
    return secret


async def authenticate(runtime: Runtime, secret: str) -> tuple[Caller, KeyRecord]:
    key = await runtime.known_keys.find(secret)
    if key is None:
        raise NotAuthenticated("unknown, expired or revoked key")
    return Caller(key.tenant_id, key.id, frozenset(key.scopes)), key


def caller_of(request: Request) -> Caller:
    caller = request.state.caller
    assert isinstance(caller, Caller)
    return caller


def needs(*scopes: Scope) -> Callable[[Request], Coroutine[Any, Any, Caller]]:
    """A dependency that is the Caller, or raises NotAllowed when the key has none of ``scopes``."""

    async def check(request: Request) -> Caller:
        caller = caller_of(request)
        if caller.scopes.isdisjoint(scopes):
            wanted = " or ".join(scopes)
            has = ", ".join(sorted(caller.scopes)) or "none"
            raise NotAllowed(f"this call needs a key with scope {wanted}; this one has: {has}")
        return caller

    return check


AgentCaller = Annotated[Caller, Depends(needs(Scope.AGENT))]
OperatorCaller = Annotated[Caller, Depends(needs(Scope.OPERATOR))]
AdminCaller = Annotated[Caller, Depends(needs(Scope.ADMIN))]
ReadingCaller = Annotated[Caller, Depends(needs(Scope.AGENT, Scope.OPERATOR))]
