"""``/v1/envs``."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query

from api.auth import ReadingCaller
from api.envs import service
from api.envs.schemas import EnvList, TaskList
from api.limits import StrictRoute
from api.runtime import RuntimeDep

router = APIRouter(prefix="/v1/envs", tags=["envs"], route_class=StrictRoute)

MAX_TASK_NUMBER = 1_000_000_000


@router.get("")
async def list_envs(runtime: RuntimeDep, caller: ReadingCaller) -> EnvList:
    """Environments with the tool schemas the agent is shown under the active changes."""
    return await service.list_envs(runtime)


@router.get("/{env}/tasks")
async def list_tasks(
    runtime: RuntimeDep,
    caller: ReadingCaller,
    env: Annotated[str, Path(min_length=1, max_length=100)],
    split: Literal["train", "heldout"] = "train",
    start: Annotated[int, Query(ge=0, le=MAX_TASK_NUMBER)] = 0,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> TaskList:
    """Tasks of one split by their number."""
    return await service.list_tasks(runtime, env, split, start, limit)
