"""The headers that say which episode a call belongs to.

They are read by a dependency of the request alone, and told to the OpenAPI document by ``told``: declared one by one as
parameters, FastAPI's work for them is a sixth of all the work for a call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError

from api.auth import needs
from api.idempotency import KEY_HEADER, KEY_TEXT, MAX_KEY_CHARS
from online_agent.gateway.calls import Caller
from online_agent.types import Scope

EPISODE_HEADER: Final = "X-Episode-Id"
PARENT_HEADER: Final = "X-Parent-Episode-Id"
RECORD_HEADER: Final = "X-Record"

MAX_ID_CHARS = 200

Name = Annotated[str | None, Field(min_length=1, max_length=MAX_ID_CHARS)]
# A segment of the paths below /v1/episodes, where no server takes an encoded slash for anything but a slash.
EpisodeName = Annotated[str | None, Field(min_length=1, max_length=MAX_ID_CHARS, pattern="^[^/]+$")]


class CallingHeaders(BaseModel):
    episode: EpisodeName = Field(
        None,
        alias=EPISODE_HEADER,
        description="Joins calls into one episode: an id from an earlier answer, or an own name, without a slash",
    )
    parent: Name = Field(
        None,
        alias=PARENT_HEADER,
        description="The episode that started this one; its reward counts here where there is no own",
    )
    record: bool = Field(True, alias=RECORD_HEADER, description="false: answer without storing")


class AnsweredHeaders(CallingHeaders):
    idempotency_key: Annotated[str | None, Field(min_length=1, max_length=MAX_KEY_CHARS)] = Field(
        None, alias=KEY_HEADER, description=KEY_TEXT
    )


Headers = TypeVar("Headers", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class CallingClient:
    """``is_recorded`` False: the client asked not to store its call."""

    caller: Caller
    is_recorded: bool


@dataclass(frozen=True, slots=True)
class AnsweredClient(CallingClient):
    """A repeat of the call with the same ``idempotency_key`` gets the answer that was given."""

    idempotency_key: str | None


def told(headers: type[BaseModel]) -> dict[str, Any]:
    """The headers as the OpenAPI document shows parameters, for ``openapi_extra`` of a route."""
    properties = headers.model_json_schema()["properties"]
    return {
        "parameters": [
            {
                "name": name,
                "in": "header",
                "required": False,
                "description": schema.pop("description"),
                "schema": schema,
            }
            for name, schema in properties.items()
        ]
    }


def _read(request: Request, headers: type[Headers]) -> Headers:
    """Raises RequestValidationError, as FastAPI does for its own parameters."""
    sent = request.headers
    names = (str(field.alias) for field in headers.model_fields.values())
    try:
        return headers.model_validate({name: sent[name] for name in names if name in sent})
    except ValidationError as error:
        raise RequestValidationError([{**one, "loc": ("header", *one["loc"])} for one in error.errors()]) from error


_agent = needs(Scope.AGENT)


async def _calling(request: Request) -> CallingClient:
    caller, headers = await _agent(request), _read(request, CallingHeaders)
    return CallingClient(Caller(caller.tenant_id, caller.key_id, headers.episode, headers.parent), headers.record)


async def _answered(request: Request) -> AnsweredClient:
    caller, headers = await _agent(request), _read(request, AnsweredHeaders)
    named = Caller(caller.tenant_id, caller.key_id, headers.episode, headers.parent)
    return AnsweredClient(named, headers.record, headers.idempotency_key)


CallingClientDep = Annotated[CallingClient, Depends(_calling)]
AnsweredClientDep = Annotated[AnsweredClient, Depends(_answered)]
