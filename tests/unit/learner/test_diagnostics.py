import math

import pytest
import torch

from online_agent.algo.objective import surrogate
from online_agent.learner.diagnostics import (
    TokenCounts,
    TokenTable,
    not_finite_reason,
    region_metrics,
    token_metrics,
    trust_region_fault,
)
from online_agent.learner.report import MetricSheet
from online_agent.recipes import find_recipe
from online_agent.recipes.parts import PpoClip

SAO = find_recipe("sao")


def table(logp, logp_mu, *, advantages=None, values=None, returns=None, versions=None):
    n = len(logp)
    policy = (logp, logp_mu, logp_mu, advantages or [1.0] * n)
    columns = (*policy, values or [0.0] * n, returns or [1.0] * n, versions or [0.0] * n)
    return TokenTable(*(torch.tensor(c) for c in columns))


def measured(tokens, version=0, region=SAO.trust_region):
    sheet = MetricSheet()
    token_metrics(sheet, tokens, version, has_critic=True)
    result = surrogate(region, tokens.logp_N, tokens.logp_mu_N, tokens.advantages_N, torch.ones_like(tokens.logp_N))
    metrics = {key: float(value) for key, value in result.metrics.items()}
    region_metrics(sheet, TokenCounts.of(metrics, len(tokens.logp_N)), metrics, None)
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


def test_a_clipped_token_is_not_a_masked_one():
    """Ratios .5 and 2, each the way its advantage pushes: PPO takes both gradients and throws neither out."""
    tokens = table([math.log(0.5) - 5, math.log(2) - 5, -5.0], [-5.0] * 3, advantages=[-1.0, 1.0, 1.0])
    metrics = measured(tokens, region=PpoClip())

    assert metrics["tokens/masked_share"] == 0
    assert metrics["tokens/clipped_low_share"] == metrics["tokens/clipped_high_share"] == pytest.approx(1 / 3)
    assert metrics["tokens/active_share"] == pytest.approx(1 / 3)


def test_the_guard_judges_what_is_masked_and_a_step_that_has_no_gradient_left():
    healthy = TokenCounts(10, 1, 10, 0, 0, 4, 5)
    assert trust_region_fault(healthy, 0.5) is None
    assert trust_region_fault(TokenCounts(10, 4, 4, 3, 3, 0, 0), 0.5) == (
        "trust region masks 0.600 of the tokens, above 0.5"
    )
    assert trust_region_fault(TokenCounts(10, 0, 10, 0, 0, 5, 5), 0.5) == (
        "trust region leaves no token a gradient: all are clipped"
    )


def test_the_gap_of_the_current_version_is_told_apart_from_that_of_older_ones():
    metrics = measured(table([-1.0, -1.0], [-1.25, -2.0], versions=[3.0, 2.0]), version=3)

    assert metrics["mismatch/current_version_max_abs_logp"] == pytest.approx(0.25)
    assert metrics["mismatch/max_abs_logp"] == pytest.approx(1.0)
    assert measured(table([-1.0], [-1.0]), version=9)["mismatch/current_version_max_abs_logp"] is None


def test_the_effective_sample_share_of_ratios_1_and_3_is_four_fifths():
    metrics = measured(table([math.log(3) - 2, -2.0], [-2.0, -2.0]))

    assert metrics["ratio/effective_sample_share"] == pytest.approx(16 / (2 * 10))


@pytest.mark.parametrize(
    ("values", "returns", "expected"),
    [
        ([0.0, 1.0], [0.0, 1.0], 1),
        ([0.5, 0.5], [0.0, 1.0], 0),
        ([1.0, 0.0], [0.0, 1.0], -3),
        ([0.0, 1.0], [1.0, 1.0], None),
    ],
)
def test_the_critic_s_fit_is_the_share_of_variance_it_explains(values, returns, expected):
    metrics = measured(table([-1.0, -1.0], [-1.0, -1.0], values=values, returns=returns))

    assert metrics["critic/explained_variance"] == expected
    assert metrics["critic/value_mean"] == 0.5


def test_ratio_quantiles_lie_between_the_ratios_by_rank():
    """101 ratios from 0.5 to 1.5 in equal steps: each percentile is one of them."""
    ratios = torch.linspace(0.5, 1.5, 101)
    metrics = measured(table((ratios.log() - 1.0).tolist(), [-1.0] * 101))

    quantiles = {q: metrics[f"ratio/q{q:02d}"] for q in (1, 10, 50, 90, 99)}
    assert quantiles == pytest.approx({1: 0.51, 10: 0.6, 50: 1.0, 90: 1.4, 99: 1.49}, abs=1e-6)


def test_a_column_that_is_not_finite_is_named():
    assert not_finite_reason(table([-1.0], [-1.0]), has_critic=True) is None
    bad = table([-1.0, float("nan")], [-1.0, -1.0])
    assert not_finite_reason(bad, has_critic=True) == "log-prob is not finite on 1 of 2 action tokens"
    infinite = table([-1.0, -1.0], [-1.0, -1.0], values=[float("inf"), 0.0])
    assert not_finite_reason(infinite, has_critic=True) == "value is not finite on 1 of 2 action tokens"
    assert not_finite_reason(infinite, has_critic=False) is None


def test_numbers_that_are_not_finite_are_written_as_none():
    sheet = MetricSheet()
    sheet.put(actor__loss=float("nan"))

    assert sheet.done()["actor/loss"] is None
