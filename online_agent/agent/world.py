"""The environment as one episode meets it: its task, its tools, and the changes that hold for it."""

from __future__ import annotations

from collections.abc import Sequence

from envs import observations
from envs.changes import ChangedEnvironment, ChangedSession, env_revision
from envs.protocols import Environment
from envs.types import Artifact, Change, Observation, Task, ToolSpec
from online_agent.store.records import ChangeRecord
from online_agent.types import ToolCall, Visibility


def as_change(record: ChangeRecord) -> Change:
    return Change(
        id=record.id,
        kind=record.kind,
        params=record.params,
        is_silent=record.visibility is Visibility.SILENT,
        is_mid_episode=record.is_mid_episode,
    )


def under_changes(base: Environment, changes: Sequence[ChangeRecord]) -> ChangedEnvironment:
    return ChangedEnvironment(base, [as_change(record) for record in changes])


class World:
    """Changes hold from the episode's start to its end, except those injected as ``mid_episode``, which hold and end at
    once. The prompt stays as it was sampled under: a tool list that changes under way is told in the next observation.
    """

    def __init__(self, environment: ChangedEnvironment, task: Task, session: ChangedSession) -> None:
        self._environment, self._session = environment, session
        self.task = task
        self._changes = self._at_start = environment.changes
        self._shown_tools = tuple(environment.tools())
        self.env_revision = env_revision(environment.base, self._changes)

    @classmethod
    async def open(cls, environment: ChangedEnvironment, task: Task) -> World:
        """``task`` as the environment documents it. Raises SandboxFailed when the environment cannot start."""
        return cls(environment, task, await environment.start(task))

    @property
    def tools(self) -> Sequence[ToolSpec]:
        return self._shown_tools

    def offers(self, tool_name: str) -> bool:
        """Whether the agent was shown a tool of that name."""
        return any(tool.name == tool_name for tool in self._shown_tools)

    def system_prompt(self) -> str:
        return self._environment.system_prompt()

    def hold(self, active: Sequence[ChangeRecord]) -> None:
        """From the next call on, the changes that are active now hold as far as they may under way."""
        now = {record.id: as_change(record) for record in active if record.is_mid_episode}
        kept = tuple(change for change in self._at_start if not change.is_mid_episode or change.id in now)
        known = {change.id for change in kept}
        changes = kept + tuple(change for change in now.values() if change.id not in known)
        if changes != self._changes:
            self._changes = changes
            self._session.set_changes(changes)
            self.env_revision = env_revision(self._environment.base, changes)

    async def answer(self, call: ToolCall) -> Observation:
        """What the call led to; one that could not be read runs nothing. Raises SandboxFailed for an outage."""
        if call.error is not None:
            return self._with_news(observations.error(call.error))
        return self._with_news(await self._session.call(call.name, call.arguments))

    def artifact(self) -> Artifact:
        return self._session.artifact()

    async def close(self) -> None:
        await self._session.close()

    def _with_news(self, observation: Observation) -> Observation:
        tools = tuple(self._session.tools())
        if tools == self._shown_tools:
            return observation
        self._shown_tools = tools
        names = ", ".join(f"{tool.name}({', '.join(tool.argument_names)})" for tool in tools)
        return Observation(f"{observation.text}\ntools are now: {names}", observation.is_error, observation.is_final)
