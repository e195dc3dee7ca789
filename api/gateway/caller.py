"""The headers that say which episode a call belongs to.

Each kind of client is one dependency that depends on no other: every call passes here, and FastAPI's work for a
dependency is more than that of the dependency itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request

from api.auth import needs
from api.idempotency import IdempotencyKey
from online_agent.gateway.calls import Caller
from online_agent.types import Scope

EPISODE_HEADER = "X-Episode-Id"
PARENT_HEADER = "X-Parent-Episode-Id"
RECORD_HEADER = "X-Record"

MAX_ID_CHARS = 200

Episode = Annotated[
    str | None,
    Header(
        alias=EPISODE_HEADER,
        min_length=1,
        max_length=MAX_ID_CHARS,
        description="Joins calls into one episode: an id from an earlier answer, or a name of your own",
    ),
]
Parent = Annotated[
    str | None,
    Header(
        alias=PARENT_HEADER,
        min_length=1,
        max_length=MAX_ID_CHARS,
        description="The episode that started this one; its reward counts here where there is no own",
    ),
]
Record = Annotated[bool, Header(alias=RECORD_HEADER, description="false: answer without storing")]

_agent = needs(Scope.AGENT)


@dataclass(frozen=True, slots=True)
class CallingClient:
    """``is_recorded`` False: the client asked not to store its call."""

    caller: Caller
    is_recorded: bool


@dataclass(frozen=True, slots=True)
class AnsweredClient(CallingClient):
    """A repeat of the call with the same ``idempotency_key`` gets the answer that was given."""

    idempotency_key: str | None


async def _calling(
    request: Request, episode: Episode = None, parent: Parent = None, record: Record = True
) -> CallingClient:
    caller = await _agent(request)
    return CallingClient(Caller(caller.tenant_id, caller.key_id, episode, parent), record)


async def _answered(
    request: Request,
    episode: Episode = None,
    parent: Parent = None,
    record: Record = True,
    idempotency_key: IdempotencyKey = None,
) -> AnsweredClient:
    caller = await _agent(request)
    return AnsweredClient(Caller(caller.tenant_id, caller.key_id, episode, parent), record, idempotency_key)


CallingClientDep = Annotated[CallingClient, Depends(_calling)]
AnsweredClientDep = Annotated[AnsweredClient, Depends(_answered)]
