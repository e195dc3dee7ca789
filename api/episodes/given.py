"""A task that comes with a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.errors import BadTask
from envs.protocols import Environment
from envs.types import Task
from online_agent.errors import BadInput
from online_agent.redaction import Redactor

OTHER_WAYS = ("task_id", "split")
"""To say which task is meant, each of which excludes this one."""


def check_only_way(sent: set[str]) -> None:
    """Raise BadInput when a request that gives a task names one too. ``sent``: the fields it has."""
    for field in OTHER_WAYS:
        if field in sent:
            raise BadInput(f"{field}: give either task or {field}, not both", param=field)


def given_task(environment: Environment, given: Mapping[str, Any], redactor: Redactor) -> Task:
    """The task without its secrets: as it is kept, shown to the agent and graded. Raises BadInput naming the field."""
    clean = redactor.json(given)
    try:
        task = environment.parse_task(clean)
    except BadTask as error:
        param = f"task.{error.field}" if error.field else "task"
        raise BadInput(f"{param}: {error}", param=param) from error
    if len(task.files) < len(given["files"]):
        raise BadInput("task.files: two paths are the same once their secrets are taken out", param="task.files")
    return task
