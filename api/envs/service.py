"""What can be asked of the agent: environments under their active changes, and their tasks."""

from __future__ import annotations

from api.envs.schemas import EnvList, EnvOut, TaskList, TaskOut, ToolOut
from api.runtime import Runtime
from envs.changes import CHANGE_KINDS, ChangedEnvironment, env_revision
from envs.protocols import Environment
from envs.types import Change, Split
from online_agent.agent.world import as_change
from online_agent.errors import UnknownName

SPLITS: tuple[Split, ...] = ("train", "heldout")


def environment(runtime: Runtime, name: str) -> Environment:
    """The environment of that name. Raises UnknownName with the names there are."""
    found = runtime.environments.get(name)
    if found is None:
        known = ", ".join(sorted(runtime.environments))
        raise UnknownName(f"no environment {name!r}; there is: {known}", param="env")
    return found


async def changed_environment(runtime: Runtime, name: str) -> tuple[ChangedEnvironment, list[Change]]:
    """The environment as it behaves now, and the changes in force, whoever injected them: environments are shared."""
    base = environment(runtime, name)
    active = await runtime.read(lambda tx: tx.changes.active(name))
    changes = [as_change(record) for record in active]
    return ChangedEnvironment(base, changes), changes


async def list_envs(runtime: Runtime) -> EnvList:
    data = []
    for name in sorted(runtime.environments):
        changed, changes = await changed_environment(runtime, name)
        data.append(
            EnvOut(
                name=name,
                version=changed.version,
                revision=env_revision(runtime.environments[name], changes),
                system_prompt=changed.system_prompt(),
                tools=[ToolOut.of(tool) for tool in changed.tools()],
                splits=list(SPLITS),
                task_schema=dict(changed.task_schema()),
            )
        )
    return EnvList(data=data, change_kinds=dict(CHANGE_KINDS))


async def list_tasks(runtime: Runtime, name: str, split: Split, start: int, limit: int) -> TaskList:
    """Tasks ``start`` to ``start + limit - 1`` of a split, made on a thread: generating them is work."""
    env = environment(runtime, name)
    tasks = await runtime.on_thread(lambda: env.tasks(split, start, limit))
    return TaskList(data=[TaskOut.of(task) for task in tasks])
