"""An episode on a task that came with the request, in the real sandbox, graded by a process that only has its row."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from envs.sandbox.nsjail import NsjailSandbox
from envs.tasks.bug_repair.environment import BugRepair
from online_agent.agent.requests import EpisodeRequest
from online_agent.config.settings import JobsSettings
from online_agent.jobs.grading import Grader
from online_agent.store.records import ChangeNew, EpisodeRecord
from online_agent.store.session import Database
from online_agent.types import EpisodeStatus, Limits, Sampling, Visibility
from tests.unit.agent.conftest import TENANT, Desk, call_text

PATH = "src/least.py"
BUGGY = "def least(xs):\n    return max(xs)\n"
GIVEN: dict[str, Any] = {
    "prompt": f"fix {PATH}: least([1, 2]) is 2, want 1",
    "files": {PATH: BUGGY},
    "tests": {"path": PATH, "cases": [{"call": "least([1, 2])", "want": "1"}, {"call": "least([3])", "want": "3"}]},
}
CURE = call_text("edit_file", path=PATH, old="max", new="min")
SUBMIT = call_text("submit")


@pytest.fixture
async def repair() -> AsyncIterator[BugRepair]:
    sandbox = NsjailSandbox(max_jobs=1)
    yield BugRepair(sandbox)
    await sandbox.close()


@pytest.fixture
def repairing(desk: Desk, repair: BugRepair) -> Desk:
    desk.environments["bug_repair"] = repair
    return desk


def request(repair: BugRepair, **task: Any) -> EpisodeRequest:
    parsed = repair.parse_task({**GIVEN, **task})
    limits = Limits(max_turns=4, max_tokens=600, timeout_s=20)
    return EpisodeRequest("bug_repair", parsed.id, Sampling(max_new_tokens=200), limits, task=parsed)


async def run(desk: Desk, repair: BugRepair, **task: Any) -> EpisodeRecord:
    return await desk.ended(await desk.runner.start(TENANT, None, request(repair, **task)))


async def graded(desk: Desk, sqlite_url: str, episode_id: str) -> EpisodeRecord:
    """By a grader that was started after the episode ended and shares nothing but the database."""
    sandbox, db = NsjailSandbox(max_jobs=1), Database(sqlite_url)
    try:
        await Grader(db, {"bug_repair": BugRepair(sandbox)}, JobsSettings(), "late").grade_batch()
    finally:
        db.close()
        await sandbox.close()
    return desk.record(episode_id)


@pytest.mark.parametrize(("said", "reward"), [((CURE, SUBMIT), 1.0), ((SUBMIT,), 0.0)])
async def test_the_agents_work_on_a_given_task_is_graded_from_the_row_alone(
    repairing: Desk, repair: BugRepair, sqlite_url: str, said: tuple[str, ...], reward: float
) -> None:
    repairing.say(*said)
    ended = await run(repairing, repair)
    assert GIVEN["prompt"] in repairing.renderer.decode(repairing.prompts()[0])
    record = await graded(repairing, sqlite_url, ended.id)
    assert (record.status, record.verdict and record.verdict.reward) == (EpisodeStatus.GRADED, reward)
    assert record.task_id == repair.parse_task(GIVEN).id
    assert record.untrainable_reason is None


async def test_the_right_values_are_in_nothing_that_the_agent_is_shown(repairing: Desk, repair: BugRepair) -> None:
    repairing.say(call_text("list_files"), call_text("read_file", path=PATH), call_text("run_tests"), "done")
    tests = {"path": PATH, "cases": [{"call": "least([71, 73])", "want": "71"}]}
    record = await run(repairing, repair, tests=tests)
    shown = "".join(repairing.renderer.decode(prompt) for prompt in repairing.prompts())
    assert "max(xs)" in shown
    assert "71" not in shown
    assert record.task is not None
    assert record.task["data"]["wants"] == ["71"]


async def test_a_change_holds_for_given_tasks_too(repairing: Desk, repair: BugRepair, sqlite_url: str) -> None:
    move = {"from": "src", "to": "lib"}
    with repairing.db.transaction() as tx:
        tx.changes.add(ChangeNew(TENANT, "bug_repair", "move_path", move, Visibility.DOCUMENTED))
    repairing.say(CURE, CURE.replace("src/", "lib/"), SUBMIT)
    ended = await run(repairing, repair)
    assert "fix lib/least.py" in repairing.renderer.decode(repairing.prompts()[0])
    assert repairing.turns(ended.id)[0].observations[0].text == "error: no file src/least.py; files: lib/least.py"
    record = await graded(repairing, sqlite_url, ended.id)
    assert record.verdict is not None
    assert (record.verdict.reward, record.task) == (1.0, repair.parse_task(GIVEN).content())


async def test_a_group_shares_one_given_task(repairing: Desk, repair: BugRepair) -> None:
    repairing.say(SUBMIT, SUBMIT)
    group = await repairing.runner.start_group(TENANT, None, request(repair), 2)
    records = [await repairing.ended(episode_id) for episode_id in group.episode_ids]
    assert [record.task for record in records] == [repair.parse_task(GIVEN).content()] * 2
    assert len({record.task_id for record in records}) == 1


async def test_a_row_that_holds_no_whole_task_fails_with_the_reason_and_earns_nothing(
    repairing: Desk, repair: BugRepair, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envs.types.Task.content", lambda self: {"note": "no task"})
    repairing.say(SUBMIT)
    ended = await run(repairing, repair)
    record = await graded(repairing, sqlite_url, ended.id)
    assert (record.status, record.verdict) == (EpisodeStatus.FAILED, None)
    assert record.failure_reason is not None
    assert record.failure_reason.startswith(f"grading: task {ended.task_id!r} of 'bug_repair' cannot be found")
