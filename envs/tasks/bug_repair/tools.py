"""The five tools: how they are documented, and what those that only touch files answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.errors import WorkspaceRefused
from envs.observations import OK, bad_argument_type, bad_arguments, error, unknown_tool
from envs.types import Observation, ToolSpec
from envs.workspace import Workspace

LIST_FILES, READ_FILE, EDIT_FILE, RUN_TESTS, SUBMIT = "list_files", "read_file", "edit_file", "run_tests", "submit"


def _spec(name: str, description: str, **arguments: str) -> ToolSpec:
    properties = {key: {"type": "string", "description": text} for key, text in arguments.items()}
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": list(arguments)})


TOOLS: tuple[ToolSpec, ...] = (
    _spec(LIST_FILES, "List the files."),
    _spec(READ_FILE, "Show a file.", path="the file to show"),
    _spec(
        EDIT_FILE,
        "Replace the first occurrence of a text in a file.",
        path="the file to change",
        old="the text to replace",
        new="the text to put in its place",
    ),
    _spec(RUN_TESTS, "Run the tests and show the first failure."),
    _spec(SUBMIT, "Hand in the files as they are."),
)
_BY_NAME = {spec.name: spec for spec in TOOLS}

PASSED = Observation("passed")
SUBMITTED = Observation(OK.text, is_final=True)


def failed(message: str) -> Observation:
    return Observation(f"failed: {message}")


def refusal(tool: str, arguments: Mapping[str, Any]) -> Observation | None:
    """What is wrong with a call, or None: unknown tool, arguments missing or unknown, values that are no text."""
    spec = _BY_NAME.get(tool)
    if spec is None:
        return unknown_tool(tool, _BY_NAME)
    if set(arguments) != set(spec.argument_names):
        return bad_arguments(tool, spec.argument_names)
    for name, value in arguments.items():
        if not isinstance(value, str):
            return bad_argument_type(name, "text")
    return None


def answer_from_files(workspace: Workspace, tool: str, arguments: Mapping[str, str]) -> Observation:
    """The answer of list_files, read_file or edit_file to a call that ``refusal`` found nothing wrong with."""
    try:
        if tool == LIST_FILES:
            return Observation("\n".join(workspace.paths()))
        if tool == READ_FILE:
            return Observation(workspace.read(arguments["path"]))
        workspace.replace(arguments["path"], arguments["old"], arguments["new"])
        return OK
    except WorkspaceRefused as refused:
        return error(str(refused))
