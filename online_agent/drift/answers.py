"""Whether a weight version answers worse than the one before: empty or idle, refusing, or with calls nobody can read.

What the version before showed, k of n, leaves its share uncertain: Beta(k + 1, n - k + 1). The newer version alarms
when so many of its own or more had a probability below ``answer_alpha`` under that (a one-sided binomial test that
allows for what the baseline does not know: the beta-binomial tail) and the share rose by ``answer_min_rise``. A version
is looked at when its answers have reached ``answer_min_count`` and at each doubling, and alarms once for each share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scipy.stats import betabinom

from online_agent.config.training import DriftSettings
from online_agent.store.records import AnswerCounts, AnswerShare
from online_agent.store.session import Database

ALARM_EVENT = "answers_alarm"
_STATE = "answers"
_NUM_VERSIONS = 50
"""How far back the version before is looked for: some versions serve for seconds."""


@dataclass(frozen=True, slots=True)
class AnswerAlarm:
    """``name`` is the share that rose; ``before`` the version it is compared with."""

    name: str
    version: int
    before: int
    share: float
    share_before: float
    num_answers: int
    num_answers_before: int
    p_value: float


def scan_answers(db: Database, settings: DriftSettings) -> list[AnswerAlarm]:
    """What rose, recorded as events ``answers_alarm``; cursor and events are committed together."""
    with db.reading() as tx:
        if not _due(tx.answers.by_version(_NUM_VERSIONS), tx.detectors.load(_STATE) or {}, settings):
            return []
    with db.transaction() as tx:
        tx.control.lock()
        state = tx.detectors.load(_STATE) or {}
        alarms: list[AnswerAlarm] = []
        for name, newer, older in _due(tx.answers.by_version(_NUM_VERSIONS), state, settings):
            seen = _seen(state, name, newer.version)
            alarm = _alarm(name, newer, older, settings)
            looked_at = newer.shares()[name].num_answers
            state[name] = {"version": newer.version, "num_answers": looked_at, "alarmed": alarm is not None}
            if alarm is not None and not seen["alarmed"]:
                tx.events.add(ALARM_EVENT, asdict(alarm), version=newer.version)
                alarms.append(alarm)
        tx.detectors.save(_STATE, state)
    return alarms


def _due(
    counts: Sequence[AnswerCounts], state: dict[str, Any], settings: DriftSettings
) -> list[tuple[str, AnswerCounts, AnswerCounts]]:
    """For each share: the newest version with enough answers, and the one with enough before it, where it is time."""
    due = []
    for name in ("no_op", "broken_call", "refusal"):
        enough = [one for one in counts if one.shares()[name].num_answers >= settings.answer_min_count]
        if len(enough) < 2:
            continue
        newer, older = enough[:2]
        seen = _seen(state, name, newer.version)
        if not seen["alarmed"] and newer.shares()[name].num_answers >= 2 * seen["num_answers"]:
            due.append((name, newer, older))
    return due


def _seen(state: dict[str, Any], name: str, version: int) -> dict[str, Any]:
    nothing = {"version": version, "num_answers": 0, "alarmed": False}
    seen: dict[str, Any] = state.get(name, nothing)
    return seen if seen["version"] == version else nothing


def _alarm(name: str, newer: AnswerCounts, older: AnswerCounts, settings: DriftSettings) -> AnswerAlarm | None:
    now, before = newer.shares()[name], older.shares()[name]
    p_value = chance_of(now, before)
    share, share_before = now.num / now.num_answers, before.num / before.num_answers
    if p_value >= settings.answer_alpha or share - share_before < settings.answer_min_rise:
        return None
    return AnswerAlarm(
        name, newer.version, older.version, share, share_before, now.num_answers, before.num_answers, p_value
    )


def chance_of(now: AnswerShare, before: AnswerShare) -> float:
    """P(X >= now.num) for X ~ Binomial(now.num_answers, p) and p ~ Beta(k + 1, n - k + 1), k of n before."""
    a, b = before.num + 1, before.num_answers - before.num + 1
    return float(betabinom.sf(now.num - 1, now.num_answers, a, b))
