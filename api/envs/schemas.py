"""Answers of ``/v1/envs``."""

from __future__ import annotations

from typing import Any, Self

from api.bodies import Answer
from envs.types import Task, ToolSpec


class ToolOut(Answer):
    name: str
    description: str
    parameters: dict[str, Any]

    @classmethod
    def of(cls, tool: ToolSpec) -> Self:
        return cls(name=tool.name, description=tool.description, parameters=dict(tool.parameters))


class EnvOut(Answer):
    """What the agent is told now. ``revision`` hashes the environment with all active changes, silent ones included.

    ``task_schema`` is the JSON schema of the ``task`` that a request for an episode may bring.
    """

    name: str
    version: str
    revision: str
    system_prompt: str
    tools: list[ToolOut]
    splits: list[str]
    task_schema: dict[str, Any]


class EnvList(Answer):
    """``change_kinds``: the kinds of change that can be injected, with the schema of their parameters."""

    data: list[EnvOut]
    change_kinds: dict[str, Any]


class TaskOut(Answer):
    id: str
    split: str
    prompt: str
    files: dict[str, str]

    @classmethod
    def of(cls, task: Task) -> Self:
        return cls(id=task.id, split=task.split, prompt=task.prompt, files=dict(task.files))


class TaskList(Answer):
    """Tasks are generated from their number and have no end; ask for more with a higher ``start``."""

    data: list[TaskOut]
