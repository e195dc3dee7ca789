"""A small environment without a sandbox: a few files, five tools, and a verifier that wants one text in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envs.errors import WorkspaceRefused
from envs.given import GivenTask, parse_given
from envs.observations import OK, error
from envs.types import Artifact, Observation, Split, Task, ToolSpec, Verdict
from envs.workspace import Workspace

FILES = {"src/calc.py": "def add(a, b):\n    return a - b\n", "src/util.py": "PLUS = '+'\n", "notes.txt": "todo\n"}


def _tool(name: str, description: str, **arguments: str) -> ToolSpec:
    properties = {key: {"type": kind, "description": f"the {key}"} for key, kind in arguments.items()}
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": list(arguments)})


TOOLS = (
    _tool("list_files", "List the files."),
    _tool("read_file", "Show a file.", path="string"),
    _tool("read_line", "Show one line, counted from 0.", path="string", line="integer"),
    _tool("edit_file", "Replace a text.", path="string", old="string", new="string"),
    _tool("submit", "Hand in."),
)


class NotesEnvironment:
    name, version = "notes", "1"

    def system_prompt(self) -> str:
        return "Read with read_file, change with edit_file, then submit."

    def tools(self) -> Sequence[ToolSpec]:
        return TOOLS

    def task(self, task_id: str) -> Task:
        split, _, number = task_id.partition("-")
        if split not in ("train", "heldout") or not number.isdigit():
            raise KeyError(task_id)
        return Task(self.name, task_id, "train" if split == "train" else "heldout", "fix src/calc.py: add", FILES)

    def tasks(self, split: Split, start: int, count: int) -> Sequence[Task]:
        return [self.task(f"{split}-{n}") for n in range(start, start + count)]

    def task_schema(self) -> Mapping[str, Any]:
        return GivenTask.model_json_schema()

    def parse_task(self, given: Mapping[str, Any]) -> Task:
        task = parse_given(GivenTask, given)
        return Task(self.name, task.id, "train", task.prompt, task.files)

    async def start(self, task: Task) -> NotesSession:
        return NotesSession(task)

    async def verify(self, task: Task, artifact: Artifact) -> Verdict:
        is_success = "return a + b" in artifact.files.get("src/calc.py", "")
        return Verdict(float(is_success), is_success)


class NotesSession:
    def __init__(self, task: Task) -> None:
        self._workspace = Workspace(task.files)
        self._is_submitted = False

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Observation:
        try:
            return self._call(tool, dict(arguments))
        except WorkspaceRefused as refusal:
            return error(str(refusal))

    def _call(self, tool: str, arguments: dict[str, Any]) -> Observation:
        match tool:
            case "list_files":
                return Observation("\n".join(self._workspace.paths()))
            case "read_file":
                return Observation(self._workspace.read(**arguments))
            case "read_line":
                return Observation(self._workspace.read(arguments["path"]).splitlines()[arguments["line"]])
            case "edit_file":
                self._workspace.replace(**arguments)
                return OK
            case "submit":
                self._is_submitted = True
                return Observation("submitted", is_final=True)
        raise AssertionError(f"{tool} was not to get here")

    def artifact(self) -> Artifact:
        return Artifact(self._workspace.snapshot(), self._is_submitted)

    async def close(self) -> None:
        return None
