"""Repair one bug in a small Python file."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

from envs.protocols import Sandbox
from envs.tasks.bug_repair.generator import BugTask, Case, generate, test_file
from envs.tasks.bug_repair.given import GivenRepair, parse_repair
from envs.tasks.bug_repair.session import PYTHON, RepairSession
from envs.tasks.bug_repair.tools import TOOLS
from envs.types import Artifact, SandboxResult, Split, Task, ToolSpec, Verdict

SYSTEM_PROMPT = "Fix the bug, run the tests, submit."
VERIFIER = "verify.py"
VERIFIER_SOURCE = files("envs.tasks.bug_repair").joinpath("jail_calls.py").read_text()
VERIFY_TIMEOUT_S = 3.0
_TASK_ID = re.compile(r"(train|heldout)-(0|[1-9]\d{0,15})")


class BugRepair:
    """Implements ``envs.protocols.Environment``. Reward 1 for a source that returns the right value for every hidden
    case, 0 otherwise. The right values never enter the jail."""

    name = "bug_repair"
    version = "1"

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def system_prompt(self) -> str:
        return SYSTEM_PROMPT

    def tools(self) -> Sequence[ToolSpec]:
        return TOOLS

    def task(self, task_id: str) -> Task:
        return _task(task_id)

    def tasks(self, split: Split, start: int, count: int) -> Sequence[Task]:
        return [_task(f"{split}-{number}") for number in range(start, start + count)]

    def task_schema(self) -> Mapping[str, Any]:
        return GivenRepair.model_json_schema()

    def parse_task(self, given: Mapping[str, Any]) -> Task:
        return parse_repair(self.name, given)

    async def start(self, task: Task) -> RepairSession:
        return RepairSession(self._sandbox, task)

    async def verify(self, task: Task, artifact: Artifact) -> Verdict:
        """Only the task's source is taken from the artifact: edited tests and added files earn nothing."""
        evidence = tampering(task, artifact)
        source = artifact.files.get(task.data["path"])
        if source is None:
            return Verdict(0.0, False, {**evidence, "reason": f"{task.data['path']} is gone"})
        if source == task.files[task.data["path"]]:
            return Verdict(0.0, False, {**evidence, "reason": "the source is as it was"})
        job = {task.data["path"]: source, VERIFIER: VERIFIER_SOURCE, "calls.txt": task.data["calls"]}
        result = await self._sandbox.run((*PYTHON, VERIFIER), job, timeout_s=VERIFY_TIMEOUT_S, as_verifier=True)
        gots = read_outcomes(result, len(task.data["wants"]))
        num_right = sum(got == want for got, want in zip(gots, task.data["wants"], strict=True))
        is_success = num_right == len(task.data["wants"])
        evidence |= {"num_cases": len(gots), "num_right": num_right, "is_timeout": result.is_timeout}
        return Verdict(float(is_success), is_success, evidence)


def tampering(task: Task, artifact: Artifact) -> dict[str, Any]:
    """What else than the source was changed: files of the task edited or removed, and files added."""
    graded = {path: text for path, text in task.files.items() if path != task.data["path"]}
    return {
        "tests_modified": any(artifact.files.get(path) != text for path, text in graded.items()),
        "added_files": sorted(set(artifact.files) - set(task.files)),
    }


def read_outcomes(result: SandboxResult, num_cases: int) -> list[str]:
    """The repr of each returned value; an empty text for each where the job did not say."""
    silent = [""] * num_cases
    if result.is_timeout or result.is_output_truncated:
        return silent
    try:
        outcomes = literal_eval(result.output)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return silent
    is_whole = isinstance(outcomes, list) and len(outcomes) == num_cases and all(type(o) is str for o in outcomes)
    return outcomes if is_whole else silent


@lru_cache(maxsize=4096)
def _task(task_id: str) -> Task:
    match = _TASK_ID.fullmatch(task_id)
    if match is None:
        raise KeyError(task_id)
    split: Split = "train" if match[1] == "train" else "heldout"
    return as_task(task_id, split, generate(split, int(match[2])))


def as_task(task_id: str, split: Split, bug: BugTask) -> Task:
    cases: tuple[Case, ...] = bug.visible + bug.hidden
    data: Mapping[str, Any] = {
        "path": bug.path,
        "calls": repr((bug.path, bug.function, [case.arguments for case in cases])),
        "wants": [repr(case.want) for case in cases],
        "family": bug.family,
        "kind": bug.kind.value,
    }
    return Task("bug_repair", task_id, split, bug.prompt, {bug.path: bug.buggy, bug.test_path: test_file(bug)}, data)
