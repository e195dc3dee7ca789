"""Tasks given with a request: what holds for those of every environment."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from envs.errors import MAX_QUOTED_CHARS, BadTask, WorkspaceRefused, quoted
from envs.workspace import Workspace

GIVEN_PREFIX = "inline-"
"""Of the ids of such tasks. No environment names its own tasks so."""
MAX_PROMPT_CHARS = 16_384
MAX_FILES = 64
MAX_FILES_BYTES = 262_144  # together; every member of a group keeps its copy
MAX_PATH_BYTES = 200  # every file system takes a name of that length

GivenT = TypeVar("GivenT", bound="GivenTask")


class GivenPart(BaseModel):
    """No unknown fields, no silent conversions."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class GivenTask(GivenPart):
    """``files``: text by relative path, what the agent starts from. An environment adds what grades it."""

    prompt: Annotated[str, Field(max_length=MAX_PROMPT_CHARS)]
    files: Annotated[dict[str, str], Field(min_length=1, max_length=MAX_FILES)]

    @property
    def id(self) -> str:
        """The same for equal tasks, whatever the order of files and fields."""
        content = json.dumps(self.model_dump(), sort_keys=True)
        return GIVEN_PREFIX + hashlib.sha256(content.encode()).hexdigest()[:16]


def parse_given(kind: type[GivenT], given: Mapping[str, Any]) -> GivenT:
    """The task, its files fit for a workspace. Raises BadTask naming the field, and for a file its path."""
    try:
        task = kind.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        value = "" if first["type"] == "missing" else f" (got {quoted(first['input'])})"
        field = ".".join(map(str, first["loc"]))  # names of the sender's own among them
        raise BadTask(f"{first['msg']}{value}", field=field[:MAX_QUOTED_CHARS]) from error
    if not task.prompt.strip():
        raise BadTask("the prompt is empty", field="prompt")
    check_files(task.files)
    return task


def check_files(files: Mapping[str, str]) -> None:
    """Raise BadTask naming the path unless all are plain relative paths, none inside another, of a bearable size."""
    workspace = Workspace({})
    for path, text in files.items():
        try:
            workspace.write(path, text)
        except WorkspaceRefused as refused:
            raise BadTask(f"the path {quoted(path)} cannot be used: {refused}", field="files") from refused
        if len(path.encode()) > MAX_PATH_BYTES:
            raise BadTask(f"the path {quoted(path)} has more than {MAX_PATH_BYTES} bytes", field="files")
        if path not in workspace.paths():
            raise BadTask(f"the path {quoted(path)} is not in its plain form, such as src/calc.py", field="files")
    size_bytes = sum(len(text.encode()) for text in files.values())
    if size_bytes > MAX_FILES_BYTES:
        raise BadTask(f"the files have {size_bytes} bytes together, the limit is {MAX_FILES_BYTES}", field="files")
