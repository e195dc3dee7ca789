"""The environments there are, by name."""

from __future__ import annotations

from envs.protocols import Environment, Sandbox
from envs.tasks.bug_repair.environment import BugRepair


def build_environments(sandbox: Sandbox) -> dict[str, Environment]:
    environments: list[Environment] = [BugRepair(sandbox)]
    return {environment.name: environment for environment in environments}
