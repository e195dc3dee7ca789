"""What can be asked of the agent: environments under their active changes, and their tasks."""

from __future__ import annotations

from collections.abc import Sequence

from api.auth import Caller
from api.envs.schemas import EnvList, EnvOut, TaskList, TaskOut, ToolOut
from api.runtime import Runtime
from envs.changes import CHANGE_KINDS, ChangedEnvironment, env_revision
from envs.protocols import Environment
from envs.types import Change, Split
from online_agent.errors import UnknownName
from online_agent.store.records import ChangeRecord
from online_agent.types import Visibility

SPLITS: tuple[Split, ...] = ("train", "heldout")


def environment(runtime: Runtime, name: str) -> Environment:
    """The environment of that name. Raises UnknownName with the names there are."""
    found = runtime.environments.get(name)
    if found is None:
        known = ", ".join(sorted(runtime.environments))
        raise UnknownName(f"no environment {name!r}; there is: {known}", param="env")
    return found


def changes_of(records: Sequence[ChangeRecord]) -> list[Change]:
    return [Change(r.id, r.kind, r.params, r.visibility is Visibility.SILENT, r.is_mid_episode) for r in records]


async def changed_environment(runtime: Runtime, caller: Caller, name: str) -> tuple[ChangedEnvironment, list[Change]]:
    """The environment as it behaves now, and the changes in force."""
    base = environment(runtime, name)
    changes = changes_of(await runtime.read(lambda tx: tx.changes.active(name, caller.tenant_id)))
    return ChangedEnvironment(base, changes), changes


async def list_envs(runtime: Runtime, caller: Caller) -> EnvList:
    data = []
    for name in sorted(runtime.environments):
        changed, changes = await changed_environment(runtime, caller, name)
        data.append(
            EnvOut(
                name=name,
                version=changed.version,
                revision=env_revision(runtime.environments[name], changes),
                system_prompt=changed.system_prompt(),
                tools=[ToolOut.of(tool) for tool in changed.tools()],
                splits=list(SPLITS),
            )
        )
    return EnvList(data=data, change_kinds=dict(CHANGE_KINDS))


async def list_tasks(runtime: Runtime, name: str, split: Split, start: int, limit: int) -> TaskList:
    """Tasks ``start`` to ``start + limit - 1`` of a split, made on a thread: generating them is work."""
    env = environment(runtime, name)
    tasks = await runtime.on_thread(lambda: env.tasks(split, start, limit))
    return TaskList(data=[TaskOut.of(task) for task in tasks])
