"""``/v1/weights``: for operators."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from api.auth import OperatorCaller
from api.bodies import NumberCursor, PageSize, VersionId
from api.idempotency import IdempotencyKey, claim_of
from api.limits import StrictRoute
from api.runtime import RuntimeDep
from api.weights import service
from api.weights.schemas import VersionDetail, VersionEpisodes, VersionList, VersionMoved, VersionOut

router = APIRouter(prefix="/v1/weights", tags=["weights"], route_class=StrictRoute)


@router.get("")
async def list_versions(
    runtime: RuntimeDep,
    caller: OperatorCaller,
    cursor: NumberCursor = None,
    limit: PageSize = 50,
) -> VersionList:
    """All versions, newest first, and the one that serves."""
    return await service.list_versions(runtime, cursor, limit)


@router.get("/{version}")
async def get_version(runtime: RuntimeDep, caller: OperatorCaller, version: VersionId) -> VersionDetail:
    """One version with parent, step, state, metrics and checksums."""
    return await service.get(runtime, version)


@router.get("/{version}/episodes")
async def list_version_episodes(runtime: RuntimeDep, caller: OperatorCaller, version: VersionId) -> VersionEpisodes:
    """Exactly which of your episodes made this version."""
    return await service.episodes_of(runtime, caller, version)


@router.post("/{version}/rollback", response_model=VersionMoved, responses={202: {"model": VersionMoved}})
async def roll_back(
    request: Request,
    runtime: RuntimeDep,
    caller: OperatorCaller,
    version: VersionId,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Serve an earlier version's content under a new number, learner restored to it. Answers when it serves."""
    claim = claim_of(request, caller, idempotency_key)
    return (await service.rollback(runtime, caller, version, claim)).response()


@router.post("/{version}/promote")
async def promote_version(runtime: RuntimeDep, caller: OperatorCaller, version: VersionId) -> VersionMoved:
    """Let a candidate serve now. Answers when it serves."""
    return await service.promote(runtime, version)


@router.post("/{version}/pin")
async def pin_version(runtime: RuntimeDep, caller: OperatorCaller, version: VersionId) -> VersionOut:
    """Keep this version's files whatever the retention says."""
    return await service.set_pinned(runtime, version, is_pinned=True)


@router.post("/{version}/unpin")
async def unpin_version(runtime: RuntimeDep, caller: OperatorCaller, version: VersionId) -> VersionOut:
    """Leave this version to the retention again."""
    return await service.set_pinned(runtime, version, is_pinned=False)
