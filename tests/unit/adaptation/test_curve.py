"""Success curves, the effect of changes, and markers, from hand-made records."""

from __future__ import annotations

import dataclasses
import json

import pytest

from online_agent.adaptation.curve import change_effects, curve, episodes_to_recover, version_rates
from online_agent.adaptation.intervals import success_rate
from online_agent.adaptation.report import build_report
from online_agent.store.records import ChangeRecord, EventRecord, SeriesPoint, VersionRecord
from online_agent.types import ChangeState, VersionOrigin, VersionState, Visibility


def point(at: float, is_success: bool, version: int = 0, revision: str = "r0") -> SeriesPoint:
    return SeriesPoint(
        episode_id=f"e{at}",
        finished_at=at,
        split="train",
        reward=float(is_success),
        is_success=is_success,
        oldest_version=version,
        newest_version=version + 1,
        env_revision=revision,
        temperature=1.0,
        num_turns=1,
        num_action_tokens=10,
        num_tool_calls=1,
        num_tool_errors=0,
    )


def series(outcomes: str, start: int = 0, revision: str = "r0") -> list[SeriesPoint]:
    """One episode a second: ``+`` succeeded, ``-`` failed."""
    return [
        point(start + i, mark == "+", version=(start + i) // 4, revision=revision) for i, mark in enumerate(outcomes)
    ]


def change(at: float | None, ended: float | None = None, change_id: str = "c1") -> ChangeRecord:
    return ChangeRecord(
        id=change_id,
        tenant_id="acme",
        env="bug_repair",
        kind="rename_tool",
        params={},
        visibility=Visibility.SILENT,
        is_mid_episode=False,
        state=ChangeState.ACTIVE,
        starts_at_count=0,
        ends_at_count=None,
        created_at=0.0,
        activated_at=at,
        ended_at=ended,
    )


def test_a_curve_point_is_the_rate_of_the_window_that_ends_there():
    points = curve(series("++--+-++"), window=4)
    assert [p.episode for p in points] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [p.rate.n for p in points] == [1, 2, 3, 4, 4, 4, 4, 4]
    assert [p.rate.num_successes for p in points] == [1, 2, 2, 2, 2, 1, 2, 3]
    assert curve([], window=4) == []


def test_a_long_curve_stays_short_and_ends_at_the_last_episode():
    points = curve(series("+-" * 5000 + "+"), window=64)
    assert len(points) <= 501
    assert points[-1].episode == 10_001


def test_a_version_is_rated_by_the_episodes_it_started():
    rates = version_rates(series("++--+-++-"))
    assert [(r.version, r.rate.num_successes, r.rate.n) for r in rates] == [(0, 2, 4), (1, 3, 4), (2, 0, 1)]


def test_a_change_is_rated_before_right_after_and_lately():
    live = series("+++-++++") + series("----" + "-+--" + "+++-" + "++++" + "+", start=8, revision="r1")
    (effect,) = change_effects(live, [change(7.5)], window=4)
    assert effect.episode == 8
    assert effect.before.rate == 1.0
    assert effect.after.rate == 0.0
    assert effect.latest.num_successes == 4
    # Windows of four: 0, 1/4, 3/4, 4/4; nine tenths of 1 is first reached by the fourth.
    assert effect.episodes_to_recover == 16


def test_episodes_under_way_when_the_change_came_belong_before_it():
    live = [*series("++++"), point(4, True), point(5, False, revision="r1"), point(6, True)]
    live += series("---", start=7, revision="r1")
    (effect,) = change_effects(live, [change(3.5)], window=4)
    assert effect.episode == 6
    assert effect.before.rate == 1.0
    assert effect.after.num_successes == 0
    assert effect.after.n == 4


def test_each_change_is_compared_within_its_own_stretch_only():
    live = series("++++", revision="r0") + series("--", start=4, revision="r1") + series("+++", start=6, revision="r2")
    first, second = change_effects(live, [change(3.5), change(5.5, change_id="c2")], window=4)
    assert (first.after.n, first.after.num_successes) == (2, 0)
    assert (second.before.n, second.before.num_successes) == (2, 0)
    assert second.after.rate == 1.0
    assert second.episodes_to_recover is None, "there was nothing to come back to"


def test_a_change_that_was_reverted_ends_its_stretch_and_one_never_active_has_none():
    live = series("++++") + series("----", start=4, revision="r1") + series("++++", start=8)
    effects = change_effects(live, [change(3.5, ended=7.5), change(None, ended=9.0, change_id="never")], window=4)
    assert [(e.change_id, e.latest.rate) for e in effects] == [("c1", 0.0)]


def test_not_recovered_yet_is_none():
    assert episodes_to_recover(series("+--+----"), success_rate([True] * 4), window=4) is None
    assert episodes_to_recover(series("+++"), success_rate([True] * 4), window=4) is None


def version(number: int, served_at: float | None, origin: VersionOrigin = VersionOrigin.STEP) -> VersionRecord:
    return VersionRecord(
        version=number,
        origin=origin,
        parent=number - 2,
        step=None,
        state=VersionState.RETIRED,
        state_reason=None,
        content_hash="",
        config_hash="",
        recipe="sao",
        metrics={},
        is_pinned=False,
        is_rolled_back=False,
        created_at=0.0,
        moved_at=0.0,
        served_at=served_at,
    )


def test_the_report_places_everything_that_happened_on_the_episode_axis():
    report = build_report(
        "bug_repair",
        4,
        series("++++----"),
        [version(3, 6.5, VersionOrigin.ROLLBACK), version(2, None), version(1, 1.5)],
        [change(3.5, ended=7.5)],
        [
            EventRecord(2, "ewma_reset", {"cause": "environment change"}, 2, 2, 5.5),
            EventRecord(1, "drift_detected", {}, 1, None, 4.5),
            EventRecord(3, "swap", {}, 1, None, 4.5),
        ],
    )
    assert [(m.kind, m.label, m.episode) for m in report.markers] == [
        ("version", "v1", 2),
        ("change", "rename_tool", 4),
        ("drift", "drift_detected", 5),
        ("reset", "environment change", 6),
        ("rollback", "v3 = v1", 7),
        ("change", "rename_tool ended", 8),
    ]
    assert report.num_episodes == 8
    json.dumps(dataclasses.asdict(report))


def test_a_window_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        build_report("bug_repair", 0, [], [], [], [])
