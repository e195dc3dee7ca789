"""The life of an episode, on SQLite and on PostgreSQL."""

from __future__ import annotations

import math

import numpy as np
import pytest

from envs.types import Artifact, Observation, Verdict
from online_agent.errors import BadInput, Conflict, NotFound
from online_agent.store.records import EpisodeNew, TurnNew
from online_agent.store.session import Database
from online_agent.types import EpisodeStatus, Limits, Sampling, Span, SpanKind, StopReason, ToolCall, VersionRun
from tests.database_fixtures import ManualClock
from tests.fakes.episodes import (
    TENANT,
    commit_step,
    finished_episode,
    graded_episode,
    make_turn,
    open_episode,
    reserve_step,
    seed_version,
)


def test_an_episode_reads_back_as_it_was_created(db: Database, clock: ManualClock) -> None:
    new = EpisodeNew(
        tenant_id=TENANT,
        env="bug_repair",
        task_id="train-7",
        split="train",
        env_revision="abc",
        sampling=Sampling(0.7, 0.9, 32),
        limits=Limits(3, 100, 9.5),
        template_hash="t",
        tools_hash="s",
        key_id="key_1",
        weight_version=4,
        task={"prompt": "fix\x00 it"},
        metadata={"tag": "a"},
    )
    with db.transaction() as tx:
        episode_id = tx.episodes.create(new)
    with db.reading() as tx:
        record = tx.episodes.get(TENANT, episode_id)
    assert record.status is EpisodeStatus.OPEN
    assert (record.sampling, record.limits) == (new.sampling, new.limits)
    assert (record.task, record.metadata, record.weight_version) == (new.task, new.metadata, 4)
    assert (record.template_hash, record.tools_hash, record.env_revision) == ("t", "s", "abc")
    assert (record.created_at, record.finished_at) == (clock.now, None)
    assert (record.oldest_version, record.newest_version, record.verdict, record.artifact) == (None, None, None, None)


def test_a_turn_reads_back_token_for_token(db: Database) -> None:
    """C28: also an observation of bytes that were no text."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 2**31 - 1, 7).astype(np.int32)
    logprobs = -rng.random(7, dtype=np.float32)
    spans = [
        Span(SpanKind.PROMPT, 0, np.array([1, 2, 3], np.int32)),
        Span(SpanKind.ACTION, 0, ids, logprobs, (VersionRun(3, 0, 2), VersionRun(4, 2, 7))),
        Span(SpanKind.TEMPLATE, 0, np.array([9], np.int32)),
        Span(SpanKind.OBSERVATION, 0, np.array([], np.int32)),
    ]
    text = "caf\u00e9 \U0001f600 \x00 \ud800 \ufffd\ufffd ok"
    new = TurnNew(
        spans=spans,
        env_revision="r2",
        text=text,
        tool_calls=[ToolCall("f", {"x": [1, {"y": None}]}), ToolCall("g", {}, error="bad json")],
        observations=[Observation(text, is_error=True), Observation("", is_final=True)],
        finish_reason="stop",
        num_prompt_tokens=3,
        num_cached_tokens=2,
        num_retractions=1,
        latency_s=0.25,
    )
    episode_id = open_episode(db)
    with db.transaction() as tx:
        assert tx.episodes.add_turn(episode_id, new) == 0
    with db.reading() as tx:
        (turn,) = tx.episodes.turns(episode_id)
        flat = tx.episodes.spans(episode_id)
    assert [(s.kind, s.turn, s.version_runs) for s in turn.spans] == [(s.kind, s.turn, s.version_runs) for s in spans]
    for read, written in zip(turn.spans, spans, strict=True):
        assert read.token_ids.dtype == np.int32
        np.testing.assert_array_equal(read.token_ids, written.token_ids)
    assert turn.spans[1].logprobs is not None
    assert turn.spans[1].logprobs.dtype == np.float32
    assert turn.spans[1].logprobs.tobytes() == logprobs.tobytes()
    assert turn.spans[0].logprobs is None
    assert (turn.text, turn.tool_calls, turn.observations) == (text, new.tool_calls, new.observations)
    assert (turn.num_cached_tokens, turn.num_retractions, turn.latency_s, turn.env_revision) == (2, 1, 0.25, "r2")
    assert len(flat) == 4


def test_turns_are_numbered_without_gaps_and_counted_on_the_episode(db: Database) -> None:
    episode_id = open_episode(db)
    for number, versions in enumerate([(5,), (3, 4), (7,)]):
        with db.transaction() as tx:
            assert tx.episodes.add_turn(episode_id, make_turn(number, versions)) == number
    with db.reading() as tx:
        record = tx.episodes.get(TENANT, episode_id)
    assert (record.num_turns, record.num_action_tokens, record.num_tool_calls, record.num_tool_errors) == (3, 18, 3, 3)
    assert (record.oldest_version, record.newest_version) == (3, 7)


def test_a_turn_sent_again_with_its_number_is_refused(db: Database) -> None:
    episode_id = open_episode(db)
    turn = make_turn()
    numbered = TurnNew(spans=turn.spans, number=0)
    with db.transaction() as tx:
        tx.episodes.add_turn(episode_id, numbered)
    with pytest.raises(Conflict, match=r"next turn of episode \S+ is 1, not 0"), db.transaction() as tx:
        tx.episodes.add_turn(episode_id, numbered)
    with db.reading() as tx:
        assert len(tx.episodes.turns(episode_id)) == 1


@pytest.mark.parametrize(
    ("logprobs", "runs", "reason"),
    [
        ([-1.0], (VersionRun(0, 0, 2),), "2 action ids but 1 log-probs"),
        (None, (VersionRun(0, 0, 2),), "2 action ids but none log-probs"),
        ([-1.0, math.nan], (VersionRun(0, 0, 2),), "log-prob at action position 1 is not finite"),
        ([-1.0, -1.0], (VersionRun(0, 0, 1),), "version runs cover 1 of 2 action ids"),
    ],
)
def test_a_turn_that_does_not_line_up_is_kept_as_it_came_and_makes_the_episode_untrainable(
    db: Database, logprobs: list[float] | None, runs: tuple[VersionRun, ...], reason: str
) -> None:
    values = None if logprobs is None else np.array(logprobs, np.float32)
    span = Span(SpanKind.ACTION, 0, np.array([5, 6], np.int32), values, runs)
    episode_id = open_episode(db)
    with db.transaction() as tx:
        tx.episodes.add_turn(episode_id, TurnNew(spans=[span]))
        tx.episodes.add_turn(episode_id, make_turn(1))
        tx.episodes.finish(episode_id, StopReason.SUBMITTED, None)
        tx.episodes.grade(episode_id, Verdict(1.0, True))
    with db.reading() as tx:
        record = tx.episodes.get(TENANT, episode_id)
        kept = tx.episodes.spans(episode_id)[0]
        counted = tx.episodes.untrainable_by_reason()
        ready = tx.episodes.queue().num_ready
    assert record.untrainable_reason == f"turn 0: {reason}"
    assert record.verdict == Verdict(1.0, True)
    assert counted == {f"turn 0: {reason}": 1}
    assert ready == 0
    if values is None:
        assert kept.logprobs is None
    else:
        assert kept.logprobs is not None
        assert kept.logprobs.tobytes() == values.tobytes()


def test_finishing_and_grading_store_artifact_and_verdict(db: Database, clock: ManualClock) -> None:
    episode_id = open_episode(db)
    artifact = Artifact({"a.py": "x\x00\n"}, is_submitted=True)
    with db.transaction() as tx:
        tx.episodes.add_turn(episode_id, make_turn())
        tx.episodes.finish(episode_id, StopReason.MAX_TURNS, artifact)
    clock.advance(2)
    with db.transaction() as tx:
        tx.episodes.grade(episode_id, Verdict(-0.5, False, {"output": "1 failed", "tests_modified": True}))
    with db.reading() as tx:
        record = tx.episodes.get(TENANT, episode_id)
    assert (record.status, record.stop_reason, record.artifact) == (
        EpisodeStatus.GRADED,
        StopReason.MAX_TURNS,
        artifact,
    )
    assert record.verdict == Verdict(-0.5, False, {"output": "1 failed", "tests_modified": True})
    assert record.finished_at is not None
    assert record.graded_at == record.finished_at + 2


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1.5, -1.01])
def test_a_reward_that_is_no_finite_number_in_range_is_refused_by_value(db: Database, reward: float) -> None:
    episode_id = finished_episode(db)
    with pytest.raises(BadInput, match=str(reward)), db.transaction() as tx:
        tx.episodes.grade(episode_id, Verdict(reward, True))
    with db.reading() as tx:
        assert tx.episodes.get(TENANT, episode_id).status is EpisodeStatus.FINISHED


def test_moves_from_the_wrong_state_are_refused_by_name(db: Database) -> None:
    episode_id = graded_episode(db)
    with pytest.raises(Conflict, match="is graded: it cannot become finished"), db.transaction() as tx:
        tx.episodes.finish(episode_id, StopReason.SUBMITTED, None)
    with pytest.raises(Conflict, match="is graded: it takes no more turns"), db.transaction() as tx:
        tx.episodes.add_turn(episode_id, make_turn(1))
    with pytest.raises(Conflict, match="is graded: only a finished one"), db.transaction() as tx:
        tx.episodes.grade(episode_id, Verdict(0.0, False))
    with pytest.raises(Conflict, match="is graded: it cannot become failed"), db.transaction() as tx:
        tx.episodes.fail(episode_id, "late")
    with pytest.raises(NotFound), db.transaction() as tx:
        tx.episodes.finish("ep_none", StopReason.SUBMITTED, None)
    with db.reading() as tx:
        assert tx.episodes.get(TENANT, episode_id).verdict == Verdict(1.0, True)


def test_an_outage_fails_the_episode_and_is_no_result(db: Database) -> None:
    episode_id = open_episode(db)
    with pytest.raises(BadInput, match="fail"), db.transaction() as tx:
        tx.episodes.finish(episode_id, StopReason.OUTAGE, None)
    with db.transaction() as tx:
        tx.episodes.fail(episode_id, "engine unreachable")
    with db.reading() as tx:
        record = tx.episodes.get(TENANT, episode_id)
        assert tx.episodes.queue().num_ungraded == 0
    assert (record.status, record.failure_reason) == (EpisodeStatus.FAILED, "engine unreachable")
    assert (record.stop_reason, record.verdict) == (StopReason.OUTAGE, None)


def test_a_cancelled_episode_is_graded_and_never_trained_on(db: Database) -> None:
    episode_id = finished_episode(db, stop_reason=StopReason.CANCELLED)
    with db.transaction() as tx:
        tx.episodes.grade(episode_id, Verdict(0.0, False))
    with db.reading() as tx:
        assert tx.episodes.get(TENANT, episode_id).untrainable_reason == "cancelled"
        assert tx.episodes.queue().num_ready == 0


def test_open_episodes_of_a_dead_process_fail_and_younger_ones_stay(db: Database, clock: ManualClock) -> None:
    old = open_episode(db)
    clock.advance(100)
    young = open_episode(db)
    with db.transaction() as tx:
        assert tx.episodes.fail_open("process died", older_than=clock.now - 50) == [old]
    with db.reading() as tx:
        assert tx.episodes.get(TENANT, old).failure_reason == "process died"
        assert tx.episodes.get(TENANT, young).status is EpisodeStatus.OPEN


def test_another_tenant_finds_nothing(db: Database) -> None:
    episode_id = graded_episode(db)
    with db.transaction() as tx:
        for act in (tx.episodes.get, tx.episodes.erase, tx.feedback.of_episode):
            with pytest.raises(NotFound):
                act("rival", episode_id)
        assert tx.episodes.list("rival").items == []
        assert tx.episodes.counts_by_status("rival")[EpisodeStatus.GRADED] == 0
        assert tx.episodes.counts_by_status(TENANT)[EpisodeStatus.GRADED] == 1


def test_the_list_is_newest_first_and_pages_meet_without_gap_or_overlap(db: Database) -> None:
    ids = [open_episode(db) for _ in range(5)]
    seen: list[str] = []
    cursor: str | None = None
    while True:
        with db.reading() as tx:
            page = tx.episodes.list(TENANT, cursor=cursor, limit=2)
        seen.extend(record.id for record in page.items)
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == ids[::-1]


def test_the_list_filters_by_status_env_and_version(db: Database) -> None:
    graded = graded_episode(db, versions=(3, 5))
    open_one = open_episode(db)
    with db.reading() as tx:
        assert [r.id for r in tx.episodes.list(TENANT, status=EpisodeStatus.OPEN).items] == [open_one]
        assert [r.id for r in tx.episodes.list(TENANT, weight_version=4).items] == [graded]
        assert tx.episodes.list(TENANT, weight_version=6).items == []
        assert tx.episodes.list(TENANT, env="other").items == []
        with pytest.raises(BadInput, match="limit"):
            tx.episodes.list(TENANT, limit=0)


def test_erasing_removes_turns_and_feedback_but_not_the_record_of_training(db: Database) -> None:
    seed_version(db)
    episode_id = graded_episode(db)
    step = reserve_step(db, 1)
    assert step is not None
    with pytest.raises(Conflict, match=f"is reserved by step {step}"), db.transaction() as tx:
        tx.episodes.erase(TENANT, episode_id)
    version = commit_step(db, step)
    with db.transaction() as tx:
        tx.episodes.erase(TENANT, episode_id)
    with db.reading() as tx:
        with pytest.raises(NotFound):
            tx.episodes.get(TENANT, episode_id)
        assert tx.episodes.turns(episode_id) == []
        (trained,) = tx.weights.episodes_of(version)
    assert (trained.episode_id, trained.is_erased) == (episode_id, True)
