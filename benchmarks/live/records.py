"""What is written down of each run, and the file that makes a bench survive a kill.

Outcomes are strings of ``0`` and ``1``, one character an episode: live ones in the order the episodes ended, held-out
ones in the order of their tasks (so that two recipes can be compared task by task).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from online_agent.errors import BadInput

PolicyName = Literal["dense", "moe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """``lag``: the engine is fed every so many-th version. ``seed``: of the learner, and which tasks are drawn."""

    recipe: str
    seed: int
    lag: int = 1
    policy: PolicyName = "dense"

    @property
    def label(self) -> str:
        parts = [
            self.recipe,
            *(["moe"] if self.policy == "moe" else []),
            *([f"lag {self.lag}"] if self.lag > 1 else []),
        ]
        return f"{' · '.join(parts)} · seed {self.seed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run. ``failure`` is None for one that ended as planned; what was measured before a failure is kept."""

    spec: RunSpec
    failure: str | None
    live: str = ""
    heldout: str = ""
    updates: int = 0
    warmup_updates: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    failed_episodes: int = 0
    resets: Mapping[str, int] = field(default_factory=dict)
    swaps: int = 0
    rejected_versions: int = 0
    non_finite: tuple[str, ...] = ()
    figures: Mapping[str, float | None] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> RunRecord:
        return cls(**{**row, "spec": RunSpec(**row["spec"]), "non_finite": tuple(row["non_finite"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """The seed policy, untouched, on the held-out tasks of one seed."""

    policy: PolicyName
    seed: int
    heldout: str


@dataclass(slots=True)
class Results:
    baselines: list[Baseline] = field(default_factory=list)
    runs: list[RunRecord] = field(default_factory=list)

    def baseline(self, policy: PolicyName, seed: int) -> Baseline | None:
        return next((b for b in self.baselines if (b.policy, b.seed) == (policy, seed)), None)

    def put(self, record: RunRecord) -> None:
        """The record of its spec, in place of an earlier one."""
        self.runs = [r for r in self.runs if r.spec != record.spec] + [record]

    def has_run(self, spec: RunSpec) -> bool:
        return any(record.spec == spec for record in self.runs)

    def to_rows(self) -> list[dict[str, Any]]:
        return [{"baseline": asdict(b)} for b in self.baselines] + [{"run": asdict(r)} for r in self.runs]


class ResultsLog:
    """A file with one JSON object a line, written to disk as soon as each is known.

    The first line says what the runs were made with; a file of another plan is not continued.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, plan: Mapping[str, Any], *, is_resumed: bool) -> Results:
        """What earlier runs of the same plan left, when resumed; a fresh file otherwise. Raises BadInput."""
        if is_resumed and self._path.exists():
            return self._read(plan)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text("")
        self._append({"plan": dict(plan)})
        return Results()

    def add(self, result: RunRecord | Baseline) -> None:
        kind = "run" if isinstance(result, RunRecord) else "baseline"
        self._append({kind: asdict(result)})

    def _read(self, plan: Mapping[str, Any]) -> Results:
        results = Results()
        text = self._path.read_text()
        whole = text[: text.rfind("\n") + 1]  # a kill may have cut the last line
        if whole != text:
            self._path.write_text(whole)
        for line in whole.splitlines():
            ((kind, value),) = json.loads(line).items()
            if kind == "plan" and value != plan:
                raise BadInput(f"{self._path} holds runs of another plan: {value}, not {dict(plan)}", param="json")
            if kind == "baseline":
                results.baselines.append(Baseline(**value))
            elif kind == "run":
                results.put(RunRecord.of_json(value))
        return results

    def _append(self, row: Mapping[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
