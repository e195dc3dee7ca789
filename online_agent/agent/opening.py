"""What an episode is when it begins: its environment as it stands now, and the row that says so."""

from __future__ import annotations

from collections.abc import Mapping

from envs.changes import ChangedEnvironment, env_revision
from envs.protocols import Environment
from online_agent.agent.recorder import Recorder
from online_agent.agent.requests import EpisodeRequest
from online_agent.agent.world import under_changes
from online_agent.errors import UnknownName
from online_agent.rendering import ChatRenderer, tool_schema_hash
from online_agent.store.records import EpisodeNew
from online_agent.telemetry import tracing


class Opening:
    def __init__(self, environments: Mapping[str, Environment], renderer: ChatRenderer, recorder: Recorder) -> None:
        self._environments, self._renderer, self._recorder = environments, renderer, recorder

    async def environment(self, name: str) -> ChangedEnvironment:
        """Under the changes that are active now. Raises UnknownName."""
        base = self._environments.get(name)
        if base is None:
            known = ", ".join(sorted(self._environments))
            raise UnknownName(f"no environment {name!r}; there are: {known}", param="env")
        return under_changes(base, await self._recorder.active_changes(name))

    def episode(
        self, tenant_id: str, key_id: str | None, request: EpisodeRequest, environment: ChangedEnvironment
    ) -> EpisodeNew:
        """Raises UnknownName for a task that does not exist."""
        try:
            task = request.task_in(environment)
        except KeyError as error:
            raise UnknownName(f"no task {request.task_id!r} in {request.env}", param="task_id") from error
        return EpisodeNew(
            tenant_id=tenant_id,
            key_id=key_id,
            env=request.env,
            task_id=request.task_id,
            task=None if request.task is None else request.task.content(),
            split=task.split,
            env_revision=env_revision(environment.base, environment.changes),
            sampling=request.sampling,
            limits=request.limits,
            template_hash=self._renderer.template_hash,
            tools_hash=tool_schema_hash(environment.tools()),
            weight_version=request.weight_version,
            metadata=request.metadata,
            untrainable_reason=request.untrainable_reason,
            traceparent=tracing.traceparent(),
        )
