"""``/v1/tenant``: what the caller's own tenant agreed to."""

from __future__ import annotations

from fastapi import APIRouter

from api.auth import AdminCaller
from api.limits import StrictRoute
from api.runtime import RuntimeDep
from api.tenants import service
from api.tenants.schemas import TenantOut, TenantUpdate

router = APIRouter(prefix="/v1/tenant", tags=["tenants"], route_class=StrictRoute)


@router.get("")
async def get_tenant(runtime: RuntimeDep, caller: AdminCaller) -> TenantOut:
    """Whether the tenant's episodes may train the shared weights, and which versions they went into."""
    return await service.get(runtime, caller)


@router.put("")
async def update_tenant(runtime: RuntimeDep, caller: AdminCaller, body: TenantUpdate) -> TenantOut:
    """Let episodes opened from now on train the shared weights, or bar all that have not been trained on for good."""
    return await service.update(runtime, caller, body)
