"""The reward an episode is trained with."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from online_agent.errors import BadInput
from online_agent.store.records import FeedbackRule
from online_agent.store.rewards import Opinion, check_reward, training_reward, weighted_mean

_REWARD = st.floats(-1, 1)


@pytest.mark.parametrize(
    ("rule", "latest", "expected"),
    [
        (FeedbackRule.MEAN_WITH_VERDICT, {"a": -1.0}, 0.0),
        (FeedbackRule.MEAN_WITH_VERDICT, {"a": -1.0, "b": 0.5, "c": 0.5}, 0.25),
        (FeedbackRule.FEEDBACK_FIRST, {"a": -1.0, "b": 0.5}, -0.25),
        (FeedbackRule.VERDICT_ONLY, {"a": -1.0}, 1.0),
        (FeedbackRule.MEAN_WITH_VERDICT, {}, 1.0),
        (FeedbackRule.FEEDBACK_FIRST, {}, 1.0),
    ],
)
def test_each_rule_by_hand(rule: FeedbackRule, latest: dict[str, float], expected: float) -> None:
    assert training_reward(rule, 1.0, {source: Opinion(reward) for source, reward in latest.items()}) == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (FeedbackRule.MEAN_WITH_VERDICT, (3 * -1.0 + 0.5 * 0.2 + 1.0) / 4.5),
        (FeedbackRule.FEEDBACK_FIRST, (3 * -1.0 + 0.5 * 0.2) / 3.5),
        (FeedbackRule.VERDICT_ONLY, 1.0),
    ],
)
def test_sources_count_by_their_weight_and_the_verdict_as_one(rule: FeedbackRule, expected: float) -> None:
    latest = {"reviewer": Opinion(-1.0, 3.0), "judge": Opinion(0.2, 0.5), "bot": Opinion(-1.0, 0.0)}
    assert training_reward(rule, 1.0, latest) == pytest.approx(expected)


def test_a_weight_next_to_nothing_is_a_weight() -> None:
    assert weighted_mean([Opinion(0.375, 1e-313)]) == 0.375


def test_where_no_source_counts_the_verdict_is_the_reward() -> None:
    assert training_reward(FeedbackRule.FEEDBACK_FIRST, 0.25, {"bot": Opinion(-1.0, 0.0)}) == 0.25
    assert weighted_mean([Opinion(-1.0, 0.0)]) is None


_OPINION = st.builds(Opinion, _REWARD, st.floats(0, 100))


@given(st.sampled_from(FeedbackRule), _REWARD, st.dictionaries(st.text(max_size=3), _OPINION, max_size=6))
def test_the_reward_stays_between_the_lowest_and_the_highest_given(
    rule: FeedbackRule, verdict: float, latest: dict[str, Opinion]
) -> None:
    reward = training_reward(rule, verdict, latest)
    given_rewards = [verdict, *(opinion.reward for opinion in latest.values())]
    assert min(given_rewards) - 1e-12 <= reward <= max(given_rewards) + 1e-12


@pytest.mark.parametrize("value", [-1, 0, 1, 0.5, -1.0])
def test_numbers_in_range_pass_as_floats(value: float) -> None:
    assert check_reward(value) == value
    assert isinstance(check_reward(value), float)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.0000001, -2, True, "1", None])
def test_anything_else_is_refused_by_value_and_field(value: object) -> None:
    with pytest.raises(BadInput, match=r"verdict must be a finite number in \[-1, 1\], got") as refused:
        check_reward(value, "verdict")  # type: ignore[arg-type]
    assert refused.value.param == "verdict"
    assert repr(value) in refused.value.message
