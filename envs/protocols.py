"""The protocols an environment is built from. Each has one contract suite in tests/contracts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from envs.types import Artifact, Observation, SandboxResult, Split, Task, ToolSpec, Verdict


class Sandbox(Protocol):
    """Runs untrusted code. Fails closed: raises SandboxUnavailable-like errors instead of running unprotected."""

    async def run(
        self,
        argv: Sequence[str],
        files: Mapping[str, str],
        *,
        timeout_s: float,
        collect_files: bool = False,
        as_verifier: bool = False,
    ) -> SandboxResult:
        """Run argv in a fresh jail whose writable working directory holds ``files``.

        ``collect_files`` returns the regular text files left behind; ``as_verifier`` runs as another user than agents.
        A job that fails, loops or floods is a result; only a sandbox that could not do its work raises SandboxFailed.
        """
        ...

    async def close(self) -> None: ...


class Session(Protocol):
    """One episode's view of the environment: tool calls in, observations out."""

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Observation:
        """Answer a tool call. An unknown tool or bad arguments give an observation that says so, never an exception."""
        ...

    def artifact(self) -> Artifact: ...

    async def close(self) -> None: ...


class Environment(Protocol):
    """A family of tasks with its tools and its verifier."""

    name: str
    version: str

    def system_prompt(self) -> str: ...

    def tools(self) -> Sequence[ToolSpec]:
        """The tools as documented to the agent."""
        ...

    def task(self, task_id: str) -> Task:
        """The task of that id, the same on every call. Raises KeyError for an id that does not exist."""
        ...

    def tasks(self, split: Split, start: int, count: int) -> Sequence[Task]:
        """Tasks ``start`` to ``start + count - 1`` of a split. Splits are disjoint in content."""
        ...

    def task_schema(self) -> Mapping[str, Any]:
        """The JSON schema of what ``parse_task`` takes; limits that a schema cannot say are told by its errors."""
        ...

    def parse_task(self, given: Mapping[str, Any]) -> Task:
        """The task that a request describes: the same id for equal ones, and to be graded like the environment's own.

        Raises BadTask naming the field. Its split is "heldout" where it repeats a held-out task: never trained on.
        """
        ...

    async def start(self, task: Task) -> Session: ...

    async def verify(self, task: Task, artifact: Artifact) -> Verdict:
        """Judge what was left behind from pristine hidden tests, as another user, after the agent is done."""
        ...
