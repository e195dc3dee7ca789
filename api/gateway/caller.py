"""The headers that say which episode a call belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header

from api.auth import AgentCaller
from online_agent.gateway.calls import Caller

EPISODE_HEADER = "X-Episode-Id"
PARENT_HEADER = "X-Parent-Episode-Id"
RECORD_HEADER = "X-Record"

MAX_ID_CHARS = 200


@dataclass(frozen=True, slots=True)
class GatewayCaller:
    """``is_recorded`` False: the client asked not to store its call."""

    caller: Caller
    is_recorded: bool


async def _caller(
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
) -> GatewayCaller:
    return GatewayCaller(Caller(caller.tenant_id, caller.key_id, episode, parent), record)


GatewayCallerDep = Annotated[GatewayCaller, Depends(_caller)]
