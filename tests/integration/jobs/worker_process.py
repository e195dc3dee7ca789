"""Runs the real worker with one environment whose verifier waits for a file: ``python -m ... FLAG_DIR``."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from envs.types import Artifact, Task, Verdict
from online_agent.jobs import context
from tests.unit.jobs.conftest import ScriptedVerifier


class WaitingVerifier(ScriptedVerifier):
    """Notes each start in ``started-<pid>`` and waits until ``release`` exists."""

    def __init__(self, flags: Path) -> None:
        super().__init__()
        self.flags = flags

    async def verify(self, task: Task, artifact: Artifact) -> Verdict:
        with (self.flags / f"started-{os.getpid()}").open("a") as file:
            file.write(task.id + "\n")
        while not (self.flags / "release").exists():  # noqa: ASYNC110 - the flag is set by another process
            await asyncio.sleep(0.05)
        return Verdict(1.0, True)


def main() -> None:
    flags = Path(sys.argv[1])
    context.build_environments = lambda _sandbox: {"scripted": WaitingVerifier(flags)}  # type: ignore[assignment,dict-item]
    from online_agent.processes.work import main as work

    work()


if __name__ == "__main__":
    main()
