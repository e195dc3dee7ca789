"""The reference that a run of bad values cannot pull down to itself."""

from __future__ import annotations

import pytest

from online_agent.drift.reference import GuardedReference


def watching(value: float | None = 0.60, num_warmup: int = 1) -> GuardedReference:
    return GuardedReference(alpha=0.3, max_drop=0.10, num_warmup=num_warmup, value=value)


def feed(reference: GuardedReference, values: list[float]) -> tuple[GuardedReference, list[bool]]:
    alarms = []
    for value in values:
        reference, is_alarm = reference.observe(value)
        alarms.append(is_alarm)
    return reference, alarms


def test_c33_every_bad_value_alarms_and_none_moves_the_reference():
    reference, alarms = feed(watching(), [0.30] * 6)
    assert alarms == [True] * 6
    assert reference.value == 0.60


def test_c33_after_a_rollback_the_reference_of_the_target_version_goes_on():
    drifted, _ = feed(watching(), [0.55, 0.30, 0.30])
    restored, alarms = feed(drifted.restart(0.60), [0.58])
    assert alarms == [False]
    assert restored.value == pytest.approx(0.594)


def test_c33_after_an_automatic_reset_a_warm_up_builds_a_new_reference():
    reference, alarms = feed(watching(num_warmup=3).restart(), [0.30, 0.36, 0.33, 0.32, 0.10])
    assert alarms == [False, False, False, False, True]
    assert reference.value == pytest.approx(0.33 + 0.3 * (0.32 - 0.33))


def test_a_value_exactly_at_the_limit_does_not_alarm():
    reference = GuardedReference(alpha=0.5, max_drop=0.25, value=0.75)
    assert reference.observe(0.5)[1] is False
    assert reference.observe(0.4999)[1] is True


def test_a_saved_reference_goes_on_where_it_was():
    reference, _ = feed(watching(None, num_warmup=3), [0.5, 0.6])
    loaded = watching(None, num_warmup=3).with_json(reference.to_json())
    assert feed(loaded, [0.7, 0.2]) == feed(reference, [0.7, 0.2])
