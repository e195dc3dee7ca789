"""``/v1/events``: what happened, for operators: swaps, resets, rollbacks, changes, drift alarms."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from api.auth import OperatorCaller
from api.bodies import MAX_ROW_NUMBER, EventCursor, PageSize
from api.events import service
from api.events.schemas import EventList
from api.limits import StrictRoute
from api.runtime import RuntimeDep

router = APIRouter(prefix="/v1/events", tags=["events"], route_class=StrictRoute)

Kinds = Annotated[list[Annotated[str, Query(max_length=100)]], Query(max_length=50, description="Repeat for several")]


@router.get("")
async def list_events(
    runtime: RuntimeDep,
    caller: OperatorCaller,
    kind: Kinds = [],  # noqa: B006 - FastAPI copies it
    after: Annotated[int, Query(ge=0, le=MAX_ROW_NUMBER)] = 0,
    cursor: EventCursor = None,
    limit: PageSize = 100,
) -> EventList:
    """Events after a given one, oldest first."""
    return await service.list_events(runtime, caller, kind or None, after if cursor is None else cursor, limit)
