"""The EWMA reference, interpolated references, and the share of tokens they leave active."""

from __future__ import annotations

import math

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_agent.algo.references import (
    ActiveTokens,
    EwmaReference,
    active_ratio,
    ewma_beta,
    linear_prox,
    loglinear_prox,
)
from online_agent.algo.trust_regions import decoupled_ppo, icepop, masked_is, tis

THETAS = [0.0, 1.0, 3.0, 4.0, 7.0, 9.0]


def parameters(theta: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor([theta], dtype=torch.float64)}


def history(reset_at: int | None = None) -> tuple[list[float], list[float]]:
    reference = EwmaReference(parameters(THETAS[0]))
    weights, averages = [reference.weight], [reference.parameters["w"].item()]
    for index, theta in enumerate(THETAS[1:], start=1):
        if index == reset_at:
            reference.reset(parameters(theta))
        else:
            reference.update(parameters(theta), ewma_beta(4))
        weights.append(reference.weight)
        averages.append(reference.parameters["w"].item())
    return weights, averages


def test_beta_puts_the_mean_age_in_the_middle_of_the_window():
    assert ewma_beta(4) == pytest.approx(2 / 3)
    assert ewma_beta(0) == 0
    for window in (1.0, 4.0, 9.0):
        assert ewma_beta(window) / (1 - ewma_beta(window)) == pytest.approx(window / 2)
    with pytest.raises(ValueError, match="negative"):
        ewma_beta(-1)


def test_the_average_is_bias_corrected():
    weights, averages = history()
    assert weights == pytest.approx([1, 1.666667, 2.111111, 2.407407, 2.604938, 2.736626], abs=1e-6)
    assert averages == pytest.approx([0, 0.6, 1.736842, 2.676923, 4.336493, 6.040602], abs=1e-6)


def test_the_age_of_the_average_approaches_the_middle_of_the_window():
    """W = 4, beta = 2/3: ages 0, .4, .736842 and in the end beta / (1 - beta) = 2 versions."""
    reference = EwmaReference({"a": torch.zeros(1)})
    ages = [reference.age_versions]
    for _ in range(60):
        reference.update({"a": torch.zeros(1)}, ewma_beta(4))
        ages.append(reference.age_versions)
    assert ages[:3] == pytest.approx([0, 0.4, 0.736842], abs=1e-6)
    assert ages[-1] == pytest.approx(2.0, abs=1e-6)
    assert EwmaReference.from_state_dict(reference.state_dict()).age_versions == reference.age_versions
    reference.reset({"a": torch.zeros(1)})
    assert reference.age_versions == 0


def test_a_reset_forgets_everything_before_it():
    weights, averages = history(reset_at=3)
    assert weights == pytest.approx([1, 1.666667, 2.111111, 1, 1.666667, 2.111111], abs=1e-6)
    assert averages == pytest.approx([0, 0.6, 1.736842, 4, 5.8, 7.315789], abs=1e-6)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.floats(0, 0.95))
@settings(max_examples=50, deadline=None)
def test_the_average_is_the_weighted_mean_of_all_versions(thetas, beta):
    reference = EwmaReference(parameters(thetas[0]))
    for theta in thetas[1:]:
        reference.update(parameters(theta), beta)
    powers = [beta**age for age in reversed(range(len(thetas)))]
    expected = sum(p * t for p, t in zip(powers, thetas, strict=True)) / sum(powers)
    assert reference.weight == pytest.approx(sum(powers))
    assert reference.parameters["w"].item() == pytest.approx(expected, abs=1e-9)


def test_it_keeps_single_precision_copies_of_its_own():
    live = torch.ones(3, dtype=torch.bfloat16)
    reference = EwmaReference({"w": live})
    live.zero_()
    assert reference.parameters["w"].tolist() == [1, 1, 1]
    assert reference.parameters["w"].dtype == torch.float32
    # A step of 1/256 is below what bf16 resolves next to 1, and must not be lost.
    reference.update({"w": torch.full((3,), 1 + 1 / 128, dtype=torch.bfloat16)}, beta=1.0)
    assert reference.parameters["w"].tolist() == pytest.approx([1 + 1 / 256] * 3, abs=1e-7)


def test_a_saved_reference_goes_on_bit_for_bit(tmp_path):
    reference = EwmaReference({"a.weight": torch.randn(2, 3), "b": torch.randn(4)})
    reference.update({"a.weight": torch.randn(2, 3), "b": torch.randn(4)}, 0.7)
    safetensors.torch.save_file(reference.state_dict(), tmp_path / "ewma.safetensors")
    state = safetensors.torch.load_file(tmp_path / "ewma.safetensors")
    restored = EwmaReference.from_state_dict(state)
    in_place = EwmaReference({"a.weight": torch.zeros(2, 3), "b": torch.zeros(4)})
    in_place.load_state_dict(state)
    newest = {"a.weight": torch.randn(2, 3), "b": torch.randn(4)}
    for each in (reference, restored, in_place):
        each.update(newest, 0.7)
    for each in (restored, in_place):
        assert each.weight == reference.weight
        for name, tensor in reference.parameters.items():
            assert torch.equal(each.parameters[name], tensor)


def test_parameters_that_differ_are_named():
    reference = EwmaReference({"a": torch.zeros(1)})
    for call in (lambda: reference.update({"b": torch.zeros(1)}, 0.5), lambda: reference.reset({})):
        with pytest.raises(KeyError, match="first: a"):
            call()


MU = torch.tensor([0.5, 0.4, 0.3, 0.2, 0.1, 0.6], dtype=torch.float64)
PROX = torch.tensor([0.45, 0.5, 0.1, 0.21, 0.25, 0.6], dtype=torch.float64)
PI = torch.tensor([0.5, 0.62, 0.11, 0.2, 0.26, 0.4], dtype=torch.float64)
SIGNS = torch.tensor([1.0, 1, 1, -1, -1, -1], dtype=torch.float64)
MASK_AND_CLIP = {"logp_prox": PROX.log(), "eps_low": 0.2, "eps_high": 0.2, "max_discrepancy": 2.0}


@pytest.mark.parametrize(("is_weighted", "expected"), [(True, -0.116667), (False, -0.093122)])
def test_mask_and_clip_act_on_the_two_halves_of_the_ratio(is_weighted, expected):
    logp = PI.log().requires_grad_()
    result = decoupled_ppo(logp, MU.log(), SIGNS, torch.ones(6), is_weighted=is_weighted, **MASK_AND_CLIP)
    assert result.per_token_loss.sum().item() / 6 == pytest.approx(expected, abs=1e-6)
    assert result.metrics["num_in_mask"].item() == 4
    assert result.kept_mask.tolist() == [True, False, False, True, False, False]
    (grad,) = torch.autograd.grad(result.per_token_loss.sum(), logp)
    weight = [1.0, 1.0] if is_weighted else [1 / 0.9, 1 / 1.05]
    assert grad.tolist() == pytest.approx([-weight[0], 0, 0, weight[1], 0, 0], abs=1e-6)


@pytest.mark.parametrize(
    ("region", "options"),
    [
        (decoupled_ppo, {"eps_low": 0.2, "eps_high": 0.2, "max_discrepancy": 2.0}),
        (tis, {"cap": 2.0, "eps_low": 0.2, "eps_high": 0.2}),
        (masked_is, {"cap": 2.0, "eps_low": 0.2, "eps_high": 0.2}),
        (icepop, {"eps_low": 0.2, "eps_high": 0.2}),
    ],
)
def test_no_gradient_reaches_the_proximal_policy(region, options):
    logp, logp_prox = PI.log().requires_grad_(), PROX.log().requires_grad_()
    region(logp, MU.log(), SIGNS, torch.ones(6), logp_prox=logp_prox, **options).per_token_loss.sum().backward()
    assert logp.grad.any()
    assert logp_prox.grad is None


def test_a_capped_weight_stops_growing_at_its_cap():
    logp = PI.log().requires_grad_()
    result = decoupled_ppo(logp, MU.log(), SIGNS, torch.ones(6), weight_cap=1.0, **MASK_AND_CLIP)
    # Weights .9 1 (was 1.25) 1 (was 1.05) 1: -(.9*1.111111 + 1.2 - .952381 - .8)
    assert result.per_token_loss.sum().item() == pytest.approx(-(1.0 + 1.2 - 0.952381 - 0.8), abs=1e-6)


def test_the_active_ratio_with_and_without_the_clip():
    tokens = active_ratio(PI.log(), MU.log(), SIGNS, torch.ones(6), logp_prox=PROX.log(), eps=0.2, max_discrepancy=2.0)
    assert tokens == ActiveTokens(num_actions=6, num_in_mask=4, num_active=2)
    assert tokens.ratio == pytest.approx(0.333333, abs=1e-6)
    assert tokens.ratio_mask_only == pytest.approx(0.666667, abs=1e-6)


def test_the_active_ratio_adds_over_micro_batches_and_is_one_when_empty():
    parts = [
        active_ratio(
            PI[p].log(), MU[p].log(), SIGNS[p], torch.ones(6)[p], logp_prox=PROX[p].log(), eps=0.2, max_discrepancy=2.0
        )
        for p in (slice(0, 2), slice(2, 6))
    ]
    assert parts[0].plus(parts[1]).ratio == pytest.approx(1 / 3)
    empty = active_ratio(PI.log(), MU.log(), SIGNS, torch.zeros(6), logp_prox=PROX.log(), eps=0.2, max_discrepancy=2.0)
    assert empty.ratio == empty.ratio_mask_only == 1.0


@pytest.mark.parametrize("discrepancy", [0.5, 2.0])
def test_the_discrepancy_mask_includes_its_edges(discrepancy):
    mu = torch.tensor([0.3, 0.07, 0.011], dtype=torch.float64)
    tokens = active_ratio(
        (mu * discrepancy).log(), mu.log(), torch.ones(3), torch.ones(3), logp_prox=(mu * discrepancy).log()
    )
    assert tokens.num_in_mask == 3


def test_interpolated_references_are_detached_and_refuse_the_end_points():
    logp = PI.log().requires_grad_()
    for prox in (linear_prox, loglinear_prox):
        assert not prox(logp, MU.log(), weight_on_mu=0.5).requires_grad
        for weight in (0.0, 1.0, -0.1):
            with pytest.raises(ValueError, match="strictly between"):
                prox(logp, MU.log(), weight_on_mu=weight)
    assert linear_prox(PI.log(), MU.log(), weight_on_mu=0.25).exp().tolist() == pytest.approx(
        (0.25 * MU + 0.75 * PI).tolist()
    )


def active_at(r: float, weight_on_mu: float, prox) -> tuple[bool, bool]:
    """Whether a token of ratio r passes the clip (for the sign that could be clipped) and the mask."""
    logp, logp_mu = torch.tensor([math.log(r)], dtype=torch.float64) - 3, torch.tensor([-3.0], dtype=torch.float64)
    advantage = torch.tensor([1.0 if r > 1 else -1.0], dtype=torch.float64)
    options = {"logp_prox": prox(logp, logp_mu, weight_on_mu=weight_on_mu), "eps_low": 0.2, "eps_high": 0.2}
    within_clip = decoupled_ppo(logp, logp_mu, advantage, torch.ones(1), max_discrepancy=1e6, **options).kept_mask
    within_mask = decoupled_ppo(logp, logp_mu, advantage, torch.ones(1), max_discrepancy=2.0, **options).metrics
    return bool(within_clip), bool(within_mask["num_in_mask"])


BANDS = [
    (loglinear_prox, 1 / 2, (0.64, 1.44), (0.25, 4.0)),
    (loglinear_prox, 1 / 3, (0.512, 1.728), (0.353553, 2.828427)),
    (linear_prox, 1 / 2, (0.666667, 1.5), (0.0, 3.0)),
    (linear_prox, 1 / 3, (0.571429, 2.0), (0.25, 2.5)),
]


@pytest.mark.parametrize(("prox", "weight_on_mu", "clip_band", "mask_band"), BANDS)
@given(r=st.floats(0.02, 6.0))
@settings(max_examples=60, deadline=None)
def test_proposition_1_the_bands_in_r_of_an_interpolated_reference(prox, weight_on_mu, clip_band, mask_band, r):
    if min(abs(r - edge) for edge in (*clip_band, *mask_band)) < 1e-4:
        return
    within_clip, within_mask = active_at(r, weight_on_mu, prox)
    assert within_clip == (clip_band[0] < r < clip_band[1])
    assert within_mask == (mask_band[0] < r < mask_band[1])


@given(r=st.floats(0.05, 20), weight_on_mu=st.floats(0.05, 0.95))
@settings(max_examples=50, deadline=None)
def test_proposition_1_loglinear_splits_the_ratio_into_powers(r, weight_on_mu):
    logp, logp_mu = torch.tensor(math.log(r), dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    prox = loglinear_prox(logp, logp_mu, weight_on_mu=weight_on_mu)
    assert (logp - prox).exp().item() == pytest.approx(r**weight_on_mu)
    assert (prox - logp_mu).exp().item() == pytest.approx(r ** (1 - weight_on_mu))
