import math

import pytest
import torch

from online_agent.learner.diagnostics import (
    TokenTable,
    band_counts,
    explained_variance,
    not_finite_reason,
    token_metrics,
)
from online_agent.learner.report import MetricSheet


def table(logp, logp_mu, *, advantages=None, values=None, returns=None, versions=None):
    n = len(logp)
    columns = (logp, logp_mu, advantages or [1.0] * n, values or [0.0] * n, returns or [1.0] * n, versions or [0.0] * n)
    return TokenTable(*(torch.tensor(c) for c in columns))


def measured(tokens, version=0, eps_low=0.8, eps_high=3.0):
    sheet = MetricSheet()
    token_metrics(sheet, tokens, band_counts(tokens, eps_low=eps_low, eps_high=eps_high), version)
    return sheet.done()


def test_the_mismatch_is_a_mean_over_action_tokens_only():
    """C11: of mask [1, 0, 0, 1] only the two actions reach the table; the gap is 0, not 3.25."""
    metrics = measured(table([-0.5, -1.0], [-0.5, -1.0]))

    assert metrics["mismatch/mean_abs_logp"] == 0
    assert metrics["ratio/mean"] == 1
    assert metrics["ratio/effective_sample_share"] == 1


def test_masked_tokens_are_counted_by_the_side_they_left_on():
    ratios = [0.1, 0.15, 1.0, 3.9, 5.0]
    metrics = measured(table([math.log(r) - 5 for r in ratios], [-5.0] * 5))

    assert metrics["tokens/kept"] == 2
    assert metrics["tokens/masked_low_share"] == pytest.approx(0.4)
    assert metrics["tokens/masked_high_share"] == pytest.approx(0.2)
    assert metrics["tokens/masked_share"] == pytest.approx(0.6)


def test_the_policy_loss_divides_by_all_action_tokens():
    """Ratios 1 and 10 (masked), advantage 2, log-probs -1 and -2: loss = -(1 * 2 * -1) / 2 = 1."""
    metrics = measured(table([-1.0, -2.0], [-1.0, -2.0 - math.log(10)], advantages=[2.0, 2.0]))

    assert metrics["actor/loss"] == pytest.approx(1.0)


def test_the_gap_of_the_current_version_is_told_apart_from_that_of_older_ones():
    metrics = measured(table([-1.0, -1.0], [-1.25, -2.0], versions=[3.0, 2.0]), version=3)

    assert metrics["mismatch/current_version_max_abs_logp"] == pytest.approx(0.25)
    assert metrics["mismatch/max_abs_logp"] == pytest.approx(1.0)
    assert measured(table([-1.0], [-1.0]), version=9)["mismatch/current_version_max_abs_logp"] is None


def test_the_effective_sample_share_of_ratios_1_and_3_is_four_fifths():
    metrics = measured(table([math.log(3) - 2, -2.0], [-2.0, -2.0]))

    assert metrics["ratio/effective_sample_share"] == pytest.approx(16 / (2 * 10))


def test_explained_variance_is_1_for_a_perfect_critic_and_0_for_a_constant():
    returns = torch.tensor([0.0, 1.0, 1.0, 0.0])

    assert explained_variance(returns, returns) == 1
    assert explained_variance(torch.full((4,), 0.5), returns) == 0
    assert math.isnan(explained_variance(torch.zeros(2), torch.ones(2)))


def test_a_column_that_is_not_finite_is_named():
    assert not_finite_reason(table([-1.0], [-1.0])) is None
    bad = table([-1.0, float("nan")], [-1.0, -1.0])
    assert not_finite_reason(bad) == "log-prob is not finite on 1 of 2 action tokens"
    infinite = table([-1.0, -1.0], [-1.0, -1.0], values=[float("inf"), 0.0])
    assert not_finite_reason(infinite) == "value is not finite on 1 of 2 action tokens"


def test_numbers_that_are_not_finite_are_written_as_none():
    sheet = MetricSheet()
    sheet.put(actor__loss=float("nan"))

    assert sheet.done()["actor/loss"] is None
