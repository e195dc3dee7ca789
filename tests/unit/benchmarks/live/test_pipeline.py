"""Runs in order on one engine: a run that fails is a record with its reason, and the next one still happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.live import pipeline
from benchmarks.live.pipeline import Observer, Pipeline, Policy
from benchmarks.live.records import Results, ResultsLog, RunRecord, RunSpec
from benchmarks.live.run import Plan
from online_agent.demo.client import Api
from online_agent.demo.service import Service
from online_agent.errors import EngineLost, OnlineAgentError
from tests.unit.benchmarks.live.scripted_service import ScriptedService

PLAN = Plan(num_episodes=16, batch_episodes=8, num_heldout=2, max_open=16)


class Stage:
    """What the pipeline did to the engine and to services, and which service does not come up."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.broken: set[str] = set()
        self.engine_dies_after: str | None = None
        self.lost_seed_for: str | None = None
        self.envs: list[Mapping[str, str]] = []
        self.running: str | None = None


class FakeEngine:
    environment: Mapping[str, str] = {"ONLINE_AGENT_ENGINE__URL": "http://engine"}

    def __init__(self, stage: Stage) -> None:
        self._stage, self.is_running = stage, True

    async def hold_seed(self, seed: object) -> float:
        self._stage.log.append(f"seed for {self._stage.running}")
        if self._stage.running == self._stage.engine_dies_after:
            self.is_running = False
        if self._stage.running == self._stage.lost_seed_for:
            raise EngineLost("checksums differ")
        return 0.1


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    stage = Stage()

    @asynccontextmanager
    async def running_engine(*args: object) -> AsyncIterator[FakeEngine]:
        stage.log.append("engine")
        yield FakeEngine(stage)

    class FakeService:
        seed = None
        start_seconds = 1.0

        def __init__(self, data_dir: Path, model_dir: Path, env: Mapping[str, str]) -> None:
            self.recipe = env["ONLINE_AGENT_LEARNER__RECIPE"]
            stage.envs.append(env)

        def launch(self) -> None:
            stage.log.append(f"launch {self.recipe}")

        async def ready(self) -> Service:
            stage.running = self.recipe
            if self.recipe in stage.broken:
                raise OnlineAgentError("`online-agent up` ended with code 1")
            return Service("http://service", "key", Path("log"))

        async def close(self) -> None:
            stage.log.append(f"close {self.recipe}")

    @asynccontextmanager
    async def connect(*args: Any) -> AsyncIterator[Api]:
        yield ScriptedService(8).api()

    monkeypatch.setattr(pipeline, "running_engine", running_engine)
    monkeypatch.setattr(pipeline, "RunService", FakeService)
    monkeypatch.setattr(pipeline, "connect", connect)
    return stage


async def run(path: Path, specs: list[RunSpec], results: Results | None = None) -> Results:
    log = ResultsLog(path)
    kept = log.open({}, is_resumed=False)
    results = results or kept
    made = Pipeline(PLAN, {"dense": Policy(path), "moe": Policy(path)}, log, results, Observer(), path.parent)
    await made.run(specs)
    return results


SAO, GRPO, DPPO = (RunSpec(recipe=name, seed=0) for name in ("sao", "grpo", "dppo"))


async def test_runs_share_one_engine_that_holds_the_seed_again_before_each(stage: Stage, tmp_path: Path) -> None:
    results = await run(tmp_path / "log.jsonl", [SAO, GRPO])
    assert [r.failure for r in results.runs] == [None, None]
    assert stage.log == [
        "engine", "launch sao", "seed for sao", "launch grpo", "close sao", "seed for grpo", "close grpo",
    ]  # fmt: skip
    assert len(results.baselines) == 1


async def test_a_service_that_does_not_come_up_is_a_failed_run_and_the_bench_goes_on(
    stage: Stage, tmp_path: Path
) -> None:
    stage.broken.add("sao")
    results = await run(tmp_path / "log.jsonl", [SAO, GRPO])
    assert [r.failure for r in results.runs] == ["OnlineAgentError: `online-agent up` ended with code 1", None]
    assert ResultsLog(tmp_path / "log.jsonl").open({}, is_resumed=True).runs == results.runs


async def test_an_engine_that_does_not_hold_the_seed_gets_no_traffic(stage: Stage, tmp_path: Path) -> None:
    stage.lost_seed_for = "sao"
    results = await run(tmp_path / "log.jsonl", [SAO, GRPO])
    assert results.runs[0].failure == "EngineLost: checksums differ"
    assert (results.runs[0].live, results.runs[1].failure) == ("", None)


async def test_a_dead_engine_is_replaced_and_so_is_the_service_that_was_started_on_it(
    stage: Stage, tmp_path: Path
) -> None:
    stage.engine_dies_after = "grpo"
    results = await run(tmp_path / "log.jsonl", [SAO, GRPO, DPPO])
    assert [r.spec.recipe for r in results.runs] == ["sao", "grpo", "dppo"]
    assert stage.log.count("engine") == 2
    assert stage.log[-5:] == ["close dppo", "engine", "launch dppo", "seed for dppo", "close dppo"]


async def test_what_was_measured_before_is_not_measured_again(stage: Stage, tmp_path: Path) -> None:
    done = Results(runs=[RunRecord(spec=SAO, failure=None)])
    results = await run(tmp_path / "log.jsonl", [SAO, GRPO], done)
    assert "launch sao" not in stage.log
    assert [r.spec for r in results.runs] == [SAO, GRPO]


async def test_with_everything_measured_no_engine_is_started(stage: Stage, tmp_path: Path) -> None:
    await run(tmp_path / "log.jsonl", [SAO], Results(runs=[RunRecord(spec=SAO, failure=None)]))
    assert stage.log == []


async def test_each_policy_has_an_engine_of_its_own(stage: Stage, tmp_path: Path) -> None:
    moe = RunSpec(recipe="sat-gspo", seed=0, policy="moe")
    results = await run(tmp_path / "log.jsonl", [SAO, moe])
    assert stage.log.count("engine") == 2
    assert {b.policy for b in results.baselines} == {"dense", "moe"}


async def test_the_lag_reaches_the_service_and_raises_the_bound_on_staleness(stage: Stage, tmp_path: Path) -> None:
    await run(tmp_path / "log.jsonl", [SAO, RunSpec(recipe="sao", seed=0, lag=16)])
    first, second = stage.envs
    assert (first["ONLINE_AGENT_WEIGHTS__PUBLISH_EVERY_VERSIONS"], first["ONLINE_AGENT_LEARNER__SEED"]) == ("1", "0")
    assert second["ONLINE_AGENT_WEIGHTS__PUBLISH_EVERY_VERSIONS"] == "16"
    staleness = [int(env["ONLINE_AGENT_LEARNER__MAX_STALENESS_VERSIONS"]) for env in (first, second)]
    assert staleness == [8, 38]
    kept = [int(env["ONLINE_AGENT_WEIGHTS__KEEP_VERSIONS"]) for env in (first, second)]
    assert all(k > s for k, s in zip(kept, staleness, strict=True))
