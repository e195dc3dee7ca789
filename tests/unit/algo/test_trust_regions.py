"""Trust regions: worked gradients, band edges, and where gradient flows."""

from __future__ import annotations

import math

import pytest
import torch

from online_agent.algo.ratios import merge_metrics
from online_agent.algo.trust_regions import (
    cispo,
    dis,
    dppo_tv,
    gspo,
    icepop,
    masked_is,
    ppo_clip,
    sat,
    sat_gspo,
    sat_threshold,
    sequence_log_ratio,
    tis,
)

MU = torch.tensor([0.5, 0.4, 0.3, 0.2, 0.1, 0.05], dtype=torch.float64)
RATIOS = torch.tensor([0.69, 0.71, 1, 2.5, 5.99, 6.1], dtype=torch.float64)
ADVANTAGES = torch.tensor([1, -1, 0.5, -0.5, 2, -2], dtype=torch.float64)
ALL = torch.ones(6)
REASONING = {"eps_low": 0.3, "eps_high": 5.0}


def policy() -> torch.Tensor:
    return (MU * RATIOS).log().requires_grad_()


def gradient(loss: torch.Tensor, logp: torch.Tensor) -> list[float]:
    (result,) = torch.autograd.grad(loss, logp)
    return result.tolist()


def test_dis_weighs_by_the_ratio_inside_the_band_and_drops_the_rest():
    logp = policy()
    loss, kept, metrics = dis(logp, MU.log(), ADVANTAGES, ALL, **REASONING)
    assert kept.tolist() == [False, True, True, True, True, False]
    expected = [0, 0.71, -0.5, 1.25, -11.98, 0]
    assert gradient(loss.sum(), logp) == pytest.approx(expected, abs=1e-6)
    assert {key: metrics[key].item() for key in ("num_actions", "num_kept", "num_masked_low", "num_masked_high")} == {
        "num_actions": 6,
        "num_kept": 4,
        "num_masked_low": 1,
        "num_masked_high": 1,
    }


def test_dis_divides_by_all_action_tokens_or_by_the_kept_ones():
    logp = policy()
    over_all = gradient(dis(logp, MU.log(), ADVANTAGES, ALL, **REASONING).per_token_loss.sum() / 6, logp)
    assert over_all == pytest.approx([0, 0.118333, -0.083333, 0.208333, -1.996667, 0], abs=1e-6)
    over_kept = gradient(dis(logp, MU.log(), ADVANTAGES, ALL, **REASONING).per_token_loss.sum() / 4, logp)
    assert over_kept == pytest.approx([0, 0.1775, -0.125, 0.3125, -2.995, 0], abs=1e-6)


def test_dis_differs_from_the_bug_of_an_attached_ratio():
    logp = policy()
    ratio = (logp - MU.log()).exp()
    inside = (ratio > 0.7) & (ratio < 6.0)
    attached = -torch.where(inside, ratio, torch.zeros_like(ratio)) * ADVANTAGES * logp
    buggy = gradient(attached.sum(), logp)
    assert buggy == pytest.approx([0, -0.183735, 0.101986, 0.383566, -5.840326, 0], abs=1e-6)
    ours = gradient(dis(logp, MU.log(), ADVANTAGES, ALL, **REASONING).per_token_loss.sum(), logp)
    assert min(abs(a - b) for a, b in zip(ours[1:5], buggy[1:5], strict=True)) > 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ratio", [0.7, 6.0])
@pytest.mark.parametrize("probability", [0.9, 0.5, 0.1, 0.037, 1e-4, 1e-9])
def test_a_ratio_exactly_on_a_band_edge_is_outside(dtype, ratio, probability):
    logp = torch.tensor([ratio * probability], dtype=dtype).log().requires_grad_()
    logp_mu = torch.tensor([probability], dtype=dtype).log()
    loss, kept, _ = dis(logp, logp_mu, torch.ones(1, dtype=dtype), torch.ones(1), **REASONING)
    assert not kept.item()
    assert loss.item() == 0
    assert gradient(loss.sum(), logp) == [0]
    nudge = 1.0001 if ratio < 1 else 0.9999
    _, kept, _ = dis(logp.detach() + math.log(nudge), logp_mu, torch.ones(1, dtype=dtype), torch.ones(1), **REASONING)
    assert kept.item()


def test_the_coding_band_is_wider_below_and_narrower_above():
    _, kept, _ = dis(policy(), MU.log(), ADVANTAGES, ALL, eps_low=0.8, eps_high=3.0)
    assert kept.tolist() == [True, True, True, True, False, False]


def test_ppo_clip_stops_only_beyond_the_edge_the_advantage_pushes_towards():
    logp = policy()
    loss, kept, _ = ppo_clip(logp, MU.log(), ADVANTAGES, ALL, eps_low=0.2, eps_high=0.28)
    assert gradient(loss.sum(), logp) == pytest.approx([-0.69, 0, -0.5, 1.25, 0, 12.2], abs=1e-6)
    assert kept.tolist() == [True, False, True, True, False, True]


def test_clip_higher_leaves_room_only_above():
    logp, logp_mu = torch.tensor([1.25]).log(), torch.zeros(1)
    one = torch.ones(1)
    assert not ppo_clip(logp, logp_mu, one, one, eps_low=0.2, eps_high=0.2).kept_mask.item()
    assert ppo_clip(logp, logp_mu, one, one, eps_low=0.2, eps_high=0.28).kept_mask.item()


D = torch.tensor([0.01, -0.02, 0.03, -0.05, 0.06, -0.08, 0.12, -0.16], dtype=torch.float64)
SAT_ADVANTAGES = torch.tensor([1, 1, -1, 1, 1, -1, 1, -1], dtype=torch.float64)
SAT_EPS = {"eps_low": 0.2, "eps_high": 0.2}


def run_sat(d, advantages, quantile):
    logp = d.clone().requires_grad_()
    mask = torch.ones_like(d)
    threshold = sat_threshold(d, mask, quantile=quantile)
    result = sat(logp, torch.zeros_like(d), advantages, mask, threshold=threshold, **SAT_EPS)
    return threshold.item(), result, gradient(result.per_token_loss.sum(), logp)


def test_sat_gates_nothing_with_fewer_than_ten_tokens_at_its_usual_quantile():
    threshold, result, _ = run_sat(D, SAT_ADVANTAGES, 0.90)
    assert threshold == 0.16
    assert result.metrics["num_gated"].item() == 0
    assert result.metrics["min_c"].item() == 1


def test_sat_narrows_the_endpoint_on_the_side_of_the_drift():
    threshold, result, grads = run_sat(D, SAT_ADVANTAGES, 0.75)
    assert threshold == 0.08
    assert result.metrics["num_gated"].item() == 2
    assert result.metrics["min_c"].item() == pytest.approx(0.2, abs=1e-6)
    surrogate = (-result.per_token_loss).tolist()
    assert surrogate[6] == pytest.approx(1.061538, abs=1e-6)
    assert surrogate[7] == pytest.approx(-0.96, abs=1e-6)
    assert grads[6] == grads[7] == 0
    assert result.kept_mask.tolist() == [True] * 6 + [False] * 2
    # c+ of token 6 and c- of token 7; the mean band is what the step can report.
    assert result.metrics["sum_eps_high"].item() == pytest.approx(0.2 * 7 + 0.2 * 0.307692, abs=1e-6)
    assert result.metrics["sum_eps_low"].item() == pytest.approx(0.2 * 7 + 0.2 * 0.2, abs=1e-6)


def test_sat_takes_an_order_statistic_of_ten_tokens():
    d = torch.cat([D, torch.tensor([0.0, 0.17], dtype=torch.float64)])
    advantages = torch.cat([SAT_ADVANTAGES, torch.ones(2, dtype=torch.float64)])
    threshold, result, grads = run_sat(d, advantages, 0.90)
    assert threshold == 0.16
    assert result.metrics["num_gated"].item() == 1
    assert result.metrics["min_c"].item() == pytest.approx(0.469725, abs=1e-6)
    assert -result.per_token_loss[9].item() == pytest.approx(1.093945, abs=1e-6)
    assert grads[9] == 0


def test_sat_endpoint_follows_the_sign_of_the_drift_and_not_of_the_advantage():
    advantages = SAT_ADVANTAGES.clone()
    advantages[6] = -1
    _, result, grads = run_sat(D, advantages, 0.75)
    assert -result.per_token_loss[6].item() == pytest.approx(-1.127497, abs=1e-6)
    assert grads[6] == pytest.approx(1.127497, abs=1e-6), "the gradient of plain PPO"
    assert result.metrics["sum_eps_low"].item() == pytest.approx(0.2 * 7 + 0.2 * 0.2, abs=1e-6), "token 7 alone"


def test_sat_without_any_drift_or_any_token_has_no_gate():
    threshold, result, _ = run_sat(torch.zeros(12, dtype=torch.float64), torch.ones(12, dtype=torch.float64), 0.90)
    assert threshold == 0
    assert result.metrics["num_gated"].item() == 0
    assert sat_threshold(D, torch.zeros(8)).item() == 0


def test_the_quantile_rank_survives_rounding_of_quantile_times_count():
    d = torch.arange(1, 101, dtype=torch.float64)
    assert 0.55 * 100 > 55
    assert sat_threshold(d, torch.ones(100), quantile=0.55).item() == 55


def test_gspo_has_one_ratio_a_sequence():
    d = torch.tensor([[0.02, -0.01, 0.03, 0.0, 5.0]], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1, 0]])
    logp = d.clone().requires_grad_()
    advantages = torch.ones_like(d)
    loss, _, _ = gspo(logp, torch.zeros_like(d), advantages, mask, eps_low=0.2, eps_high=0.2)
    assert (-loss[0, :4]).tolist() == pytest.approx([1.010050] * 4, abs=1e-6)
    assert loss[0, 4].item() == 0
    assert gradient(loss.sum() / 4, logp)[0] == pytest.approx([-1.010050 / 4] * 4 + [0], abs=1e-6)


def test_gspo_of_a_packed_row_equals_gspo_of_rows():
    generator = torch.Generator().manual_seed(1)
    logp, logp_mu = torch.randn(2, 3, 5, generator=generator) * 0.1
    advantages = torch.randn(3, 5, generator=generator)
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])
    rows = gspo(logp, logp_mu, advantages, mask, eps_low=0.01, eps_high=0.01)
    episode = torch.arange(3)[:, None].expand(3, 5)
    flat = [x.reshape(1, -1) for x in (logp, logp_mu, advantages, mask, episode)]
    packed = gspo(*flat[:4], eps_low=0.01, eps_high=0.01, episode_BT=flat[4])
    assert torch.equal(packed.per_token_loss, rows.per_token_loss.reshape(1, -1))
    assert torch.equal(packed.kept_mask, rows.kept_mask.reshape(1, -1))


def test_sat_gspo_takes_its_threshold_over_broadcast_sequence_ratios():
    # Three sequences of 2, 2 and 6 tokens with mean drift 0.02, 0.01 and 0.3.
    d = torch.tensor([[0.04, 0.0, 0, 0, 0, 0], [0.01, 0.01, 0, 0, 0, 0], [0.3] * 6], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1] * 6])
    zeros = torch.zeros_like(d)
    drift = sequence_log_ratio(d, zeros, mask)
    assert sat_threshold(drift, mask, quantile=0.40).item() == pytest.approx(0.02)
    result = sat_gspo(
        d, zeros, torch.ones_like(d), mask, threshold=sat_threshold(drift, mask, quantile=0.40), **SAT_EPS
    )
    # psi(0.3; 0.02) = 1 / 226: the third sequence is clipped at 1 + 0.2 / 226.
    assert result.metrics["num_gated"].item() == 6
    assert (-result.per_token_loss[2]).tolist() == pytest.approx([1 + 0.2 / 226] * 6)
    assert (-result.per_token_loss[0, :2]).tolist() == pytest.approx([math.exp(0.02)] * 2)


def test_dppo_lets_a_token_move_by_probability_and_not_by_ratio():
    mu = torch.tensor([1e-4, 0.99, 0.5, 0.5], dtype=torch.float64)
    pi = torch.tensor([1e-2, 0.8, 0.5005, 0.49], dtype=torch.float64)
    advantages = torch.tensor([1.0, -1, 1, 1], dtype=torch.float64)
    logp = pi.log().requires_grad_()
    loss, kept, _ = dppo_tv(logp, mu.log(), advantages, torch.ones(4), max_difference=1e-3)
    assert kept.tolist() == [False, False, True, True]
    assert gradient(loss.sum(), logp) == pytest.approx([0, 0, -1.001, -0.98], abs=1e-9)


def test_cispo_caps_the_weight_but_keeps_every_gradient():
    logp = policy()
    loss, kept, _ = cispo(logp, MU.log(), ADVANTAGES, ALL, eps_low=0.3, eps_high=1.0)
    # Weights 0.7 0.71 1 2 2 2.
    assert gradient(loss.sum(), logp) == pytest.approx([-0.7, 0.71, -0.5, 1.0, -4.0, 4.0], abs=1e-9)
    assert kept.all()


@pytest.mark.parametrize(
    ("region", "options", "weights"),
    [
        (tis, {"cap": 2.0}, [0.4, 1.0, 2.0, 2.0]),
        (masked_is, {"cap": 2.0}, [0.4, 1.0, 2.0, 0.0]),
        (icepop, {}, [0.0, 1.0, 2.0, 0.0]),
    ],
)
def test_discrepancy_weights_of_the_neighbours(region, options, weights):
    mu = torch.tensor([0.5, 0.3, 0.2, 0.1], dtype=torch.float64)
    prox = mu * torch.tensor([0.4, 1.0, 2.0, 6.0], dtype=torch.float64)
    logp = prox.log().clone().requires_grad_()
    loss, kept, _ = region(
        logp, mu.log(), torch.ones_like(mu), torch.ones(4), logp_prox=prox.log(), eps_low=0.2, eps_high=0.2, **options
    )
    assert gradient(loss.sum(), logp) == pytest.approx([-w for w in weights], abs=1e-9)
    assert kept.tolist() == [w > 0 for w in weights]


def test_c11_mismatch_counts_action_tokens_only():
    rollout = torch.tensor([-0.5, 0.0, 0.0, -1.0])
    trainer = torch.tensor([-0.5, -6.0, -7.0, -1.0])
    mask = torch.tensor([1, 0, 0, 1])
    loss, kept, metrics = dis(trainer, rollout, torch.ones(4), mask, **REASONING)
    assert metrics["num_actions"].item() == 2
    assert metrics["sum_abs_log_ratio"].item() / metrics["num_actions"].item() == 0.0
    assert (trainer - rollout).abs().mean().item() == pytest.approx(3.25), "the faulty number"
    assert metrics["sum_ratio"].item() == 2
    assert metrics["sum_kl"].item() == 0
    assert kept.tolist() == [True, False, False, True]
    assert loss[1:3].tolist() == [0, 0]


def test_metrics_of_micro_batches_merge_to_those_of_the_step():
    whole = dis(policy(), MU.log(), ADVANTAGES, ALL, **REASONING).metrics
    parts = [
        dis(policy()[part], MU.log()[part], ADVANTAGES[part], ALL[part], **REASONING).metrics
        for part in (slice(0, 1), slice(1, 4), slice(4, 6))
    ]
    merged = merge_metrics(parts)
    assert merged.keys() == whole.keys()
    for key, value in whole.items():
        assert merged[key].item() == pytest.approx(value.item()), key
    assert merge_metrics([]) == {}
