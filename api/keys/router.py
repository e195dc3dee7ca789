"""``/v1/keys``: for admins, within their tenant."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.auth import AdminCaller
from api.bodies import RowId
from api.idempotency import IdempotencyKey, claim_of
from api.keys import service
from api.keys.schemas import KeyCreate, KeyCreated, KeyList, KeyRotate
from api.limits import StrictRoute
from api.runtime import RuntimeDep

router = APIRouter(prefix="/v1/keys", tags=["keys"], route_class=StrictRoute)


@router.post("", status_code=201, response_model=KeyCreated)
async def create_key(
    request: Request, runtime: RuntimeDep, caller: AdminCaller, body: KeyCreate, idempotency_key: IdempotencyKey = None
) -> Response:
    """Make a key. Its secret is in this answer and nowhere else."""
    claim = claim_of(request, caller, idempotency_key, body)
    return (await service.create(runtime, caller, body, claim)).response()


@router.post("/{key_id}/rotate", response_model=KeyCreated)
async def rotate_key(
    request: Request,
    runtime: RuntimeDep,
    caller: AdminCaller,
    key_id: RowId,
    body: KeyRotate,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Give a key a new secret, shown in this answer alone. The one so far stays good for `overlap_s`."""
    claim = claim_of(request, caller, idempotency_key, body)
    return (await service.rotate(runtime, caller, key_id, body, claim)).response()


@router.get("")
async def list_keys(runtime: RuntimeDep, caller: AdminCaller) -> KeyList:
    """The tenant's keys, without their secrets."""
    return await service.list_keys(runtime, caller)


@router.delete("/{key_id}", status_code=204)
async def revoke_key(runtime: RuntimeDep, caller: AdminCaller, key_id: RowId) -> None:
    """Revoke a key, at once."""
    await service.revoke(runtime, caller, key_id)
