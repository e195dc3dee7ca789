"""What an environment speaks: tasks, tools, observations, verdicts. Knows nothing of models or learning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Split = Literal["train", "heldout"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the agent sees it. ``parameters`` is a JSON schema object; its property order is the argument order."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    @property
    def argument_names(self) -> tuple[str, ...]:
        return tuple(self.parameters.get("properties", {}))

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(self.parameters.get("required", ()))


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do. ``files`` is what the agent starts from; ``data`` is for the verifier alone, never shown."""

    env: str
    id: str
    split: Split
    prompt: str
    files: Mapping[str, str]
    data: Mapping[str, Any] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """What a task given with a request is kept as: JSON-able, its part of ``Task(env, id, split, **content)``."""
        return {"prompt": self.prompt, "files": dict(self.files), "data": dict(self.data)}


@dataclass(frozen=True, slots=True)
class Observation:
    """What a tool call answered. ``is_error``: the call was refused or failed (part of the world, not an outage).

    ``is_final``: the agent asked to stop (submit).
    """

    text: str
    is_error: bool = False
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Artifact:
    """What the agent left behind: JSON-able, stored with the episode, all the verifier needs besides the task."""

    files: Mapping[str, str]
    is_submitted: bool = False

    def to_json(self) -> dict[str, Any]:
        return {"files": dict(self.files), "is_submitted": self.is_submitted}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Artifact:
        return cls(files=dict(data["files"]), is_submitted=bool(data["is_submitted"]))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Reward in [-1, 1] with its evidence (JSON-able: output of the hidden tests, flags such as ``tests_modified``)."""

    reward: float
    is_success: bool
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """An injected alteration of tools or API. Silent: prompt and schemas keep the old state, only behaviour tells."""

    id: str
    kind: str
    params: Mapping[str, Any]
    is_silent: bool
    is_mid_episode: bool = False


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """One finished job. ``output`` is stdout and stderr in order, decoded with replacement characters, capped.

    With ``collect_files``: ``files`` holds the regular text files left behind (None for a job that was cut short or got
    in the way), ``links`` each symbolic link with its target (never followed), ``skipped_files`` what is too large or
    not text.
    """

    output: str
    exit_code: int
    is_timeout: bool = False
    is_output_truncated: bool = False
    files: Mapping[str, str] | None = None
    wall_s: float = 0.0
    links: Mapping[str, str] = field(default_factory=dict)
    skipped_files: tuple[str, ...] = ()
