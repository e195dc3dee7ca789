"""The headers that say which episode a call belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header

from api.auth import AgentCaller
from api.idempotency import IdempotencyKey
from online_agent.gateway.calls import Caller

EPISODE_HEADER = "X-Episode-Id"
PARENT_HEADER = "X-Parent-Episode-Id"
RECORD_HEADER = "X-Record"

MAX_ID_CHARS = 200


@dataclass(frozen=True, slots=True)
class CallingClient:
    """``is_recorded`` False: the client asked not to store its call."""

    caller: Caller
    is_recorded: bool


@dataclass(frozen=True, slots=True)
class AnsweredClient(CallingClient):
    """A repeat of the call with the same ``idempotency_key`` gets the answer that was given."""

    idempotency_key: str | None


async def calling(
    caller: AgentCaller,
    episode: Annotated[
        str | None,
        Header(
            alias=EPISODE_HEADER,
            min_length=1,
            max_length=MAX_ID_CHARS,
            description="Joins calls into one episode: an id from an earlier answer, or a name of your own",
        ),
    ] = None,
    parent: Annotated[
        str | None,
        Header(
            alias=PARENT_HEADER,
            min_length=1,
            max_length=MAX_ID_CHARS,
            description="The episode that started this one; its reward counts here where there is no own",
        ),
    ] = None,
    record: Annotated[bool, Header(alias=RECORD_HEADER, description="false: answer without storing")] = True,
) -> CallingClient:
    return CallingClient(Caller(caller.tenant_id, caller.key_id, episode, parent), record)


CallingClientDep = Annotated[CallingClient, Depends(calling)]


async def _answered(client: CallingClientDep, idempotency_key: IdempotencyKey = None) -> AnsweredClient:
    return AnsweredClient(client.caller, client.is_recorded, idempotency_key)


AnsweredClientDep = Annotated[AnsweredClient, Depends(_answered)]
