"""Finished episodes get one verdict each, whatever is delivered twice, dies or fails on the way."""

from __future__ import annotations

import asyncio
import math

import pytest

from envs.errors import NoSandbox, SandboxFailed
from envs.types import Verdict
from online_agent.config.settings import JobsSettings
from online_agent.jobs.grading import Grader, GradingReport
from online_agent.store.records import EpisodeRecord
from online_agent.store.session import Database
from online_agent.types import EpisodeStatus
from tests.fakes.tracing import kept_spans, trace_of
from tests.unit.jobs.conftest import TENANT, Clock, ScriptedVerifier, finish_episode

SETTINGS = JobsSettings(grading_batch=4, grading_lease_s=30.0, max_grading_attempts=3)


@pytest.fixture
def verifier() -> ScriptedVerifier:
    return ScriptedVerifier()


@pytest.fixture
def grader(db: Database, verifier: ScriptedVerifier) -> Grader:
    return Grader(db, {"scripted": verifier}, SETTINGS, "worker-1")


def row(db: Database, episode_id: str) -> EpisodeRecord:
    with db.reading() as tx:
        return tx.episodes.get(TENANT, episode_id)


async def test_a_verdict_is_written_with_its_evidence(db: Database, grader: Grader) -> None:
    episode_id = finish_episode(db, files={"b.py": "y = 2\n"})
    assert await grader.grade_batch() == GradingReport(num_claimed=1, num_graded=1)
    record = row(db, episode_id)
    assert record.status is EpisodeStatus.GRADED
    assert record.verdict == Verdict(1.0, True, {"files": {"b.py": "y = 2\n"}})


async def test_a_batch_is_verified_at_the_same_time(db: Database, grader: Grader, verifier: ScriptedVerifier) -> None:
    for n in range(6):
        finish_episode(db, f"train-{n}")
    assert (await grader.grade_batch()).num_graded == 4
    assert verifier.max_running == 4
    assert (await grader.grade_batch()).num_graded == 2
    assert (await grader.grade_batch()) == GradingReport()


async def test_c23_a_second_delivery_while_the_first_still_runs_finds_nothing(
    db: Database, grader: Grader, verifier: ScriptedVerifier
) -> None:
    verifier.release = asyncio.Event()
    finish_episode(db)
    first = asyncio.create_task(grader.grade_batch())
    await verifier.has_started.wait()
    second = Grader(db, {"scripted": verifier}, SETTINGS, "worker-2")
    assert await second.grade_batch() == GradingReport()
    verifier.release.set()
    assert (await first).num_graded == 1
    assert verifier.verified == ["train-0"]


async def test_c23_a_killed_worker_frees_its_claim_when_the_lease_runs_out(
    db: Database, grader: Grader, verifier: ScriptedVerifier, clock: Clock
) -> None:
    episode_id = finish_episode(db)
    with db.transaction() as tx:
        assert len(tx.episodes.claim_ungraded("killed", 30.0, 1)) == 1
    assert (await grader.grade_batch()).num_claimed == 0
    clock.now += 30.1
    assert (await grader.grade_batch()).num_graded == 1
    assert row(db, episode_id).status is EpisodeStatus.GRADED


async def test_a_verdict_that_comes_after_another_ones_is_a_duplicate(
    db: Database, grader: Grader, verifier: ScriptedVerifier, clock: Clock
) -> None:
    """The first grader was slower than its lease; the verdict of the second one counts."""
    verifier.release = asyncio.Event()
    episode_id = finish_episode(db)
    slow = asyncio.create_task(grader.grade_batch())
    await verifier.has_started.wait()
    clock.now += 31
    other = ScriptedVerifier()
    other.outcomes["train-0"] = Verdict(0.0, False)
    assert (await Grader(db, {"scripted": other}, SETTINGS, "worker-2").grade_batch()).num_graded == 1
    verifier.release.set()
    assert (await slow).num_duplicates == 1
    assert row(db, episode_id).verdict == Verdict(0.0, False)


@pytest.mark.parametrize("outage", [SandboxFailed("no fork"), NoSandbox("no nsjail"), OSError("pipe"), TimeoutError()])
async def test_an_outage_is_tried_again_and_then_fails_the_episode_without_a_reward(
    db: Database, grader: Grader, verifier: ScriptedVerifier, clock: Clock, outage: Exception
) -> None:
    verifier.outcomes["train-0"] = outage
    episode_id = finish_episode(db)
    for _ in range(2):
        assert (await grader.grade_batch()).num_retried == 1
        assert row(db, episode_id).status is EpisodeStatus.FINISHED
        clock.now += 30.1
    assert (await grader.grade_batch()).num_failed == 1
    record = row(db, episode_id)
    assert (record.status, record.verdict) == (EpisodeStatus.FAILED, None)
    assert (record.failure_reason or "").startswith("grading: ")


async def test_an_outage_that_passes_costs_nothing(
    db: Database, grader: Grader, verifier: ScriptedVerifier, clock: Clock
) -> None:
    verifier.outcomes["train-0"] = SandboxFailed("no fork")
    finish_episode(db)
    await grader.grade_batch()
    verifier.outcomes.clear()
    clock.now += 30.1
    assert (await grader.grade_batch()).num_graded == 1


async def test_a_verifier_with_a_bug_is_an_outage_and_does_not_hold_up_the_others(
    db: Database, grader: Grader, verifier: ScriptedVerifier
) -> None:
    verifier.outcomes["train-0"] = ZeroDivisionError("a bug")
    episode_id, _ = finish_episode(db), finish_episode(db, "train-1")
    report = await grader.grade_batch()
    assert (report.num_graded, report.num_retried) == (1, 1)
    assert row(db, episode_id).status is EpisodeStatus.FINISHED


async def test_one_outage_does_not_touch_the_others_of_its_batch(
    db: Database, grader: Grader, verifier: ScriptedVerifier
) -> None:
    verifier.outcomes["train-1"] = SandboxFailed("no fork")
    for n in range(3):
        finish_episode(db, f"train-{n}")
    report = await grader.grade_batch()
    assert (report.num_graded, report.num_retried) == (2, 1)


@pytest.mark.parametrize("reward", [math.nan, math.inf, 1.5, -2.0])
async def test_a_reward_that_is_no_reward_fails_the_episode_and_names_it(
    db: Database, grader: Grader, verifier: ScriptedVerifier, reward: float
) -> None:
    verifier.outcomes["train-0"] = Verdict(reward, True)
    episode_id, other = finish_episode(db), finish_episode(db, "train-1")
    report = await grader.grade_batch()
    assert (report.num_graded, report.num_failed) == (1, 1)
    record = row(db, episode_id)
    assert record.status is EpisodeStatus.FAILED
    assert str(reward) in (record.failure_reason or "")
    assert row(db, other).status is EpisodeStatus.GRADED


@pytest.mark.parametrize(
    ("env", "task_id", "reason"),
    [("gone", "train-0", "no environment named 'gone'"), ("scripted", "no-such-task", "cannot be found")],
)
async def test_what_can_never_be_graded_fails_at_once(
    db: Database, grader: Grader, env: str, task_id: str, reason: str
) -> None:
    episode_id = finish_episode(db, task_id, env=env)
    assert (await grader.grade_batch()).num_failed == 1
    assert reason in (row(db, episode_id).failure_reason or "")


async def test_an_episode_erased_while_it_was_graded_is_no_error(
    db: Database, grader: Grader, verifier: ScriptedVerifier
) -> None:
    verifier.release = asyncio.Event()
    episode_id = finish_episode(db)
    running = asyncio.create_task(grader.grade_batch())
    await verifier.has_started.wait()
    with db.transaction() as tx:
        tx.episodes.erase(TENANT, episode_id)
    verifier.release.set()
    assert (await running).num_duplicates == 1


async def test_a_grading_is_a_span_in_the_trace_that_asked_for_the_episode(
    db: Database, grader: Grader, verifier: ScriptedVerifier
) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    asked = finish_episode(db, "train-0", traceparent=f"00-{trace}-00f067aa0ba902b7-01")
    finish_episode(db, "train-1")
    verifier.outcomes["train-1"] = SandboxFailed("the jail is gone, and with it the client's text")
    with kept_spans() as spans:
        await grader.grade_batch()
    by_episode = {(span.attributes or {})["gen_ai.conversation.id"]: span for span in spans.all()}
    graded, [other] = by_episode.pop(asked), list(by_episode.values())
    assert (graded.name, trace_of(graded)) == ("grade scripted", trace)
    assert (graded.attributes or {})["gen_ai.evaluation.score.value"] == 1.0
    assert trace_of(other) != trace
    assert (other.attributes or {})["error.type"] == "SandboxFailed"
    assert "client" not in spans.text()
