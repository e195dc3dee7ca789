"""One episode of bug repair: the agent's files, and its calls answered."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from envs.protocols import Sandbox
from envs.tasks.bug_repair import tools
from envs.types import Artifact, Observation, SandboxResult, Task
from envs.workspace import Workspace

RUNNER = "run_tests.py"
RUNNER_SOURCE = files("envs.tasks.bug_repair").joinpath("jail_tests.py").read_text()
PYTHON = ("/usr/bin/python3", "-I", "-S")
TEST_TIMEOUT_S = 3.0
MARK = "result: "
MAX_ANSWER_CHARS = 200


class RepairSession:
    """Tests run on a copy in a jail of their own, so a program can change neither the files nor the next run."""

    def __init__(self, sandbox: Sandbox, task: Task) -> None:
        self._sandbox = sandbox
        self._workspace = Workspace(task.files)
        self._is_submitted = False

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Observation:
        refused = tools.refusal(tool, arguments)
        if refused is not None:
            return refused
        if tool == tools.RUN_TESTS:
            return await self._run_tests()
        if tool == tools.SUBMIT:
            self._is_submitted = True
            return tools.SUBMITTED
        return tools.answer_from_files(self._workspace, tool, arguments)

    def artifact(self) -> Artifact:
        return Artifact(self._workspace.snapshot(), self._is_submitted)

    async def close(self) -> None:
        """Nothing is held between calls."""

    async def _run_tests(self) -> Observation:
        job = {**self._workspace.snapshot(), RUNNER: RUNNER_SOURCE}
        result = await self._sandbox.run((*PYTHON, RUNNER), job, timeout_s=TEST_TIMEOUT_S)
        return read_result(result)


def read_result(result: SandboxResult) -> Observation:
    """What the agent is told of a test run."""
    if result.is_timeout:
        return tools.failed("the tests take too long")
    _, mark, said = result.output.rpartition(MARK)
    if not mark:
        return tools.failed("the tests ended early")
    if said == tools.PASSED.text:
        return tools.PASSED
    return Observation(said[:MAX_ANSWER_CHARS])
