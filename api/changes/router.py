"""``/v1/changes``: for operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from api.auth import OperatorCaller
from api.bodies import RowId
from api.changes import service
from api.changes.schemas import ChangeCreate, ChangeList, ChangeOut
from api.idempotency import IdempotencyKey, claim_of
from api.limits import StrictRoute
from api.runtime import RuntimeDep

router = APIRouter(prefix="/v1/changes", tags=["changes"], route_class=StrictRoute)


@router.get("")
async def list_changes(
    runtime: RuntimeDep, caller: OperatorCaller, env: Annotated[str | None, Query(min_length=1, max_length=100)] = None
) -> ChangeList:
    """Every change ever injected, in order, with its state."""
    return await service.list_changes(runtime, caller, env)


@router.post("", status_code=201, response_model=ChangeOut)
async def inject_change(
    request: Request,
    runtime: RuntimeDep,
    caller: OperatorCaller,
    body: ChangeCreate,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Alter tools or API under the agent while traffic runs. It takes hold at the next episode unless `mid_episode`."""
    claim = claim_of(request, caller, idempotency_key, body)
    return (await service.inject(runtime, caller, body, claim)).response()


@router.delete("/{change_id}")
async def revert_change(runtime: RuntimeDep, caller: OperatorCaller, change_id: RowId) -> ChangeOut:
    """End a change."""
    return await service.revert(runtime, caller, change_id)
