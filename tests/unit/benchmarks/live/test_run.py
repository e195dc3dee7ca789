"""One run against a scripted service: traffic, updates, held-out tasks, and what is written down."""

from __future__ import annotations

import pytest

from benchmarks.live.records import RunSpec
from benchmarks.live.run import LiveRun, Plan
from benchmarks.live.traffic import TASKS_PER_SEED, RunFailed, Stalled
from tests.unit.benchmarks.live.scripted_service import ScriptedService

PLAN = Plan(num_episodes=24, batch_episodes=8, num_heldout=4, max_open=16)


def make_run(service: ScriptedService, plan: Plan = PLAN, *, lag: int = 1, group_size: int | None = None) -> LiveRun:
    spec = RunSpec(recipe="sao", seed=2, lag=lag)
    return LiveRun(plan, spec, group_size, service.api(), lambda text: None)


async def test_a_run_ends_with_its_updates_and_the_outcomes_of_its_seeds_tasks() -> None:
    service = ScriptedService(8)
    run = make_run(service)
    await run.train()
    await run.evaluate()
    record = await run.record(None)
    assert record.failure is None
    assert record.updates >= 3
    assert record.heldout == "0101"
    assert len(record.live) == 24
    assert record.resets == {"tau": 1}
    assert record.figures["seconds_per_update"] == 0.5
    assert record.figures["kept_share"] == pytest.approx(0.9)
    trained = [b["task_id"] for b in service.bodies if b["task_id"].startswith("train-")]
    assert trained[:3] == [f"train-{2 * TASKS_PER_SEED + i}" for i in range(3)]
    assert len(set(trained)) == len(trained)


async def test_recipes_of_groups_send_whole_groups() -> None:
    service = ScriptedService(8)
    run = make_run(service, group_size=4)
    await run.train()
    await run.evaluate()
    sizes = {b.get("group_size") for b in service.bodies if b["task_id"].startswith("train-")}
    assert sizes == {4}
    assert (await run.record(None)).updates >= 3


async def test_an_engine_that_lags_is_measured_with_what_it_serves() -> None:
    service = ScriptedService(8, serves_every=2)
    run = make_run(service, lag=2)
    await run.train()
    await run.evaluate()
    heldout = [b["weight_version"] for b in service.bodies if b["task_id"].startswith("heldout-")]
    assert set(heldout) == {service.serving_version}


async def test_a_version_that_never_serves_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.live.traffic.SETTLE_TIMEOUT_S", 0.0)
    service = ScriptedService(8, serves_every=100)
    run = make_run(service)
    await run.train()
    with pytest.raises(RunFailed, match="did not serve, 0 still does"):
        await run.evaluate()


async def test_a_learner_that_pauses_itself_fails_the_run_and_its_reasons_are_kept() -> None:
    service = ScriptedService(8, skips=True)
    run = make_run(service, Plan(num_episodes=80, batch_episodes=8, num_heldout=4, max_open=16))
    with pytest.raises(RunFailed, match="paused itself"):
        await run.train()
    record = await run.record("it paused")
    assert record.failure == "it paused"
    assert record.skipped == {"all tokens masked": 3}
    assert (record.updates, record.heldout) == (0, "")


async def test_a_learner_that_ends_no_step_is_not_waited_for_for_ever() -> None:
    run = make_run(ScriptedService(1000), Plan(24, 8, 4, max_open=4, stall_s=0.6))
    with pytest.raises(Stalled, match="no step ended for 1 s after 0 updates"):
        await run.train()
