"""Whether a version answers worse than the one before it."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import insert

from online_agent.config.training import DriftSettings
from online_agent.drift.answers import AnswerAlarm, chance_of, scan_answers
from online_agent.store.models import Completion
from online_agent.store.records import AnswerCounts, AnswerShare, VersionNew
from online_agent.store.session import Database
from online_agent.types import AnswerKind, VersionOrigin
from tests.fakes.client_episodes import answer, open_client

SETTINGS = DriftSettings(answer_min_count=20)


def versions(db: Database, *numbers: int) -> None:
    with db.transaction() as tx:
        for number in numbers:
            tx.weights.insert(VersionNew(number, VersionOrigin.STEP))


def answers(db: Database, version: int, num: int, kind: AnswerKind, *, has_tools: bool = True) -> None:
    """Rows as the first one of an episode, which goes through the repository."""
    episode_id = open_client(db)
    answer(db, episode_id, weight_version=version, answer_kind=kind, has_tools=has_tools)
    with db.transaction() as tx:
        row = dict(tx.connection.execute(Completion.__table__.select().limit(1)).mappings().one())
        mine = {"episode_id": episode_id, "weight_version": version, "answer_kind": kind, "has_tools": has_tools}
        if num > 1:
            tx.connection.execute(insert(Completion), [{**row, **mine, "turn": turn} for turn in range(1, num)])


def events(db: Database) -> list[dict[str, Any]]:
    with db.reading() as tx:
        return [dict(event.data) for event in tx.events.list(["answers_alarm"])]


def test_the_shares_by_hand() -> None:
    """With tools 8 calls, 1 text, 1 empty, 2 broken, 3 refusals; without tools 4 texts and 1 refusal."""
    with_tools = {"call": 8, "text": 1, "empty": 1, "broken_call": 2, "refusal": 3}
    counts = {(True, AnswerKind(kind)): num for kind, num in with_tools.items()}
    counts |= {(False, AnswerKind.TEXT): 4, (False, AnswerKind.REFUSAL): 1}
    assert AnswerCounts(1, counts).shares() == {
        "no_op": AnswerShare(2, 15),
        "broken_call": AnswerShare(2, 15),
        "refusal": AnswerShare(4, 20),
    }
    assert AnswerCounts(1, {(False, AnswerKind.TEXT): 1}).shares()["no_op"].share is None


def test_the_chance_by_hand() -> None:
    """p ~ Beta(1, 3) after 0 of 2: P(X = k) of 2 is C(2, k) B(k + 1, 5 - k) / B(1, 3), so 12/20, 6/20 and 2/20."""
    before = AnswerShare(0, 2)
    assert chance_of(AnswerShare(2, 2), before) == pytest.approx(2 / 20)
    assert chance_of(AnswerShare(1, 2), before) == pytest.approx(8 / 20)
    assert chance_of(AnswerShare(0, 2), before) == pytest.approx(1.0)


def test_a_version_whose_calls_stop_matching_alarms_once(db: Database) -> None:
    versions(db, 0, 1, 2)
    answers(db, 0, 40, AnswerKind.CALL)
    answers(db, 1, 5, AnswerKind.CALL)
    answers(db, 2, 10, AnswerKind.CALL)
    answers(db, 2, 10, AnswerKind.BROKEN_CALL)
    [alarm] = scan_answers(db, SETTINGS)
    assert isinstance(alarm, AnswerAlarm)
    assert (alarm.name, alarm.version, alarm.before) == ("broken_call", 2, 0), "version 1 has too few answers"
    assert (alarm.share, alarm.share_before, alarm.num_answers) == (0.5, 0.0, 20)
    answers(db, 2, 40, AnswerKind.BROKEN_CALL)
    assert scan_answers(db, SETTINGS) == []
    [event] = events(db)
    assert event["name"] == "broken_call"
    versions(db, 3)
    answers(db, 3, 20, AnswerKind.TEXT)
    assert [alarm.name for alarm in scan_answers(db, SETTINGS)] == ["no_op"], "another version is looked at anew"


def test_with_few_answers_or_a_small_rise_nothing_alarms(db: Database) -> None:
    versions(db, 0, 1)
    answers(db, 0, 400, AnswerKind.CALL)
    answers(db, 1, 19, AnswerKind.REFUSAL)
    assert scan_answers(db, SETTINGS) == [], "19 answers"
    answers(db, 1, 281, AnswerKind.CALL)
    small = DriftSettings(answer_min_count=20, answer_min_rise=0.1)
    assert scan_answers(db, small) == [], "19 of 300 refusals are improbable, and still few"


def test_an_equal_version_is_looked_at_when_its_answers_have_doubled(db: Database) -> None:
    versions(db, 0, 1)
    answers(db, 0, 40, AnswerKind.CALL)
    answers(db, 1, 20, AnswerKind.CALL)
    assert scan_answers(db, SETTINGS) == []
    answers(db, 1, 19, AnswerKind.REFUSAL)
    assert scan_answers(db, SETTINGS) == [], "39 of 40"
    answers(db, 1, 1, AnswerKind.REFUSAL)
    assert [alarm.name for alarm in scan_answers(db, SETTINGS)] == ["refusal"]
