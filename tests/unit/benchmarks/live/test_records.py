"""The log of runs: nothing is lost by a kill, nothing is measured twice, plans are not mixed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.live.records import Baseline, ResultsLog, RunRecord, RunSpec
from online_agent.errors import BadInput

PLAN = {"num_episodes": 480}


def record(recipe: str = "sao", seed: int = 0, failure: str | None = None) -> RunRecord:
    return RunRecord(
        spec=RunSpec(recipe=recipe, seed=seed), failure=failure, live="0101", heldout="11", non_finite=("actor/loss",)
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "runs.jsonl"


def test_a_resumed_bench_knows_what_was_done(path: Path) -> None:
    log = ResultsLog(path)
    log.open(PLAN, is_resumed=False)
    log.add(Baseline(policy="dense", seed=0, heldout="0011"))
    log.add(record())
    log.add(record("grpo", failure="RunFailed: stalled"))
    results = ResultsLog(path).open(PLAN, is_resumed=True)
    assert results.runs == [record(), record("grpo", failure="RunFailed: stalled")]
    assert results.has_run(RunSpec(recipe="grpo", seed=0))
    assert not results.has_run(RunSpec(recipe="grpo", seed=1))
    assert not results.has_run(RunSpec(recipe="grpo", seed=0, lag=4))
    assert results.baseline("dense", 0) == Baseline(policy="dense", seed=0, heldout="0011")
    assert results.baseline("moe", 0) is None


def test_a_line_that_a_kill_cut_is_dropped_and_the_file_goes_on_whole(path: Path) -> None:
    log = ResultsLog(path)
    log.open(PLAN, is_resumed=False)
    log.add(record())
    with path.open("a") as file:
        file.write('{"run": {"spec": {"reci')
    resumed = ResultsLog(path)
    assert resumed.open(PLAN, is_resumed=True).runs == [record()]
    resumed.add(record("grpo"))
    assert ResultsLog(path).open(PLAN, is_resumed=True).runs == [record(), record("grpo")]


def test_without_resume_the_file_starts_anew(path: Path) -> None:
    log = ResultsLog(path)
    log.open(PLAN, is_resumed=False)
    log.add(record())
    assert ResultsLog(path).open(PLAN, is_resumed=False).runs == []
    assert ResultsLog(path).open(PLAN, is_resumed=True).runs == []


def test_runs_of_another_plan_are_not_continued(path: Path) -> None:
    ResultsLog(path).open(PLAN, is_resumed=False)
    with pytest.raises(BadInput, match="another plan"):
        ResultsLog(path).open({"num_episodes": 64}, is_resumed=True)


def test_a_repeated_run_stands_in_place_of_the_earlier_one(path: Path) -> None:
    log = ResultsLog(path)
    log.open(PLAN, is_resumed=False)
    log.add(record(failure="RunFailed: stalled"))
    log.add(record())
    assert ResultsLog(path).open(PLAN, is_resumed=True).runs == [record()]
