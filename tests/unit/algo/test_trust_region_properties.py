"""What holds for every trust region, whatever the numbers."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_agent.algo.aggregation import global_token_mean
from online_agent.algo.ratios import Surrogate
from online_agent.algo.trust_regions import (
    cispo,
    decoupled_ppo,
    dis,
    dppo_tv,
    gspo,
    icepop,
    masked_is,
    ppo_clip,
    sat,
    sat_gspo,
    sat_threshold,
    tis,
)

EPS = {"eps_low": 0.2, "eps_high": 0.28}


def against_prox(region, **options):
    """The region with a proximal policy half way between mu and a fixed policy."""

    def run(logp, logp_mu, advantages, mask) -> Surrogate:
        prox = torch.where(mask.bool(), 0.5 * logp_mu, torch.zeros_like(logp_mu))
        return region(logp, logp_mu, advantages, mask, logp_prox=prox, **options)

    return run


TOKEN_LEVEL = {
    "dis": functools.partial(dis, eps_low=0.8, eps_high=3.0),
    "dis_around_prox": against_prox(dis, eps_low=0.8, eps_high=3.0),
    "ppo_clip": functools.partial(ppo_clip, **EPS),
    "sat": functools.partial(sat, threshold=torch.tensor(0.1), **EPS),
    "dppo_tv": dppo_tv,
    "cispo": functools.partial(cispo, **EPS),
    "decoupled_ppo": against_prox(decoupled_ppo, eps_low=0.2, eps_high=0.2, max_discrepancy=2.0),
    "tis": against_prox(tis, cap=2.0, **EPS),
    "masked_is": against_prox(masked_is, cap=2.0, **EPS),
    "icepop": against_prox(icepop, **EPS),
}
SEQUENCE_LEVEL = {
    "gspo": functools.partial(gspo, **EPS),
    "sat_gspo": functools.partial(sat_gspo, threshold=torch.tensor(0.1), **EPS),
}
ALL_REGIONS = TOKEN_LEVEL | SEQUENCE_LEVEL

every_region = pytest.mark.parametrize("region", ALL_REGIONS.values(), ids=ALL_REGIONS.keys())
every_token_region = pytest.mark.parametrize("region", TOKEN_LEVEL.values(), ids=TOKEN_LEVEL.keys())


def numbers(seed: int, rows: int = 3, length: int = 7):
    generator = torch.Generator().manual_seed(seed)
    logp_mu = -torch.rand(rows, length, generator=generator, dtype=torch.float64) * 3 - 0.01
    logp = logp_mu + torch.randn(rows, length, generator=generator, dtype=torch.float64) * 0.4
    advantages = torch.randn(rows, length, generator=generator, dtype=torch.float64)
    mask = torch.rand(rows, length, generator=generator) < 0.6
    return logp, logp_mu, advantages, mask


def loss_and_gradient(region, logp, logp_mu, advantages, mask, denominator):
    logp = logp.clone().requires_grad_()
    result = region(logp, logp_mu, advantages, mask)
    loss = global_token_mean(result.per_token_loss, mask, denominator)
    loss.backward()
    return loss.detach(), logp.grad


@every_region
@given(seed=st.integers(0, 10_000), filler=st.sampled_from([float("nan"), float("inf"), float("-inf"), 3.0]))
@settings(max_examples=15, deadline=None)
def test_what_stands_at_masked_positions_never_matters(region, seed, filler):
    logp, logp_mu, advantages, mask = numbers(seed)
    clean = loss_and_gradient(region, logp, logp_mu, advantages, mask, 10.0)
    dirty = [x.masked_fill(~mask, filler) for x in (logp, logp_mu, advantages)]
    loss, grad = loss_and_gradient(region, *dirty, mask, 10.0)
    assert torch.equal(loss, clean[0])
    assert torch.equal(grad, clean[1])
    assert not grad[~mask].any()


@every_region
@given(seed=st.integers(0, 10_000), left=st.integers(0, 3), right=st.integers(0, 3))
@settings(max_examples=15, deadline=None)
def test_padding_on_either_side_never_changes_a_number(region, seed, left, right):
    batch = numbers(seed)
    loss, grad = loss_and_gradient(region, *batch, 10.0)
    padded = [torch.nn.functional.pad(x, (left, right), value=-5.0) for x in batch[:3]]
    mask = torch.nn.functional.pad(batch[3], (left, right), value=False)
    padded_loss, padded_grad = loss_and_gradient(region, *padded, mask, 10.0)
    assert padded_loss.item() == pytest.approx(loss.item(), abs=1e-12)
    assert torch.equal(padded_grad[:, left : left + 7], grad)


@every_region
@given(seed=st.integers(0, 10_000), cut=st.integers(1, 2))
@settings(max_examples=15, deadline=None)
def test_micro_batches_add_up_to_the_step(region, seed, cut):
    batch = numbers(seed)
    denominator = batch[3].sum().double()
    loss, grad = loss_and_gradient(region, *batch, denominator)
    parts = [
        loss_and_gradient(region, *[x[rows] for x in batch], denominator) for rows in (slice(0, cut), slice(cut, None))
    ]
    assert sum(p[0] for p in parts).item() == pytest.approx(loss.item(), abs=1e-12)
    assert torch.allclose(torch.cat([p[1] for p in parts]), grad, atol=1e-12)


@every_token_region
@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_token_regions_do_not_care_how_tokens_are_laid_out(region, seed):
    batch = numbers(seed)
    loss, grad = loss_and_gradient(region, *batch, 10.0)
    packed_loss, packed_grad = loss_and_gradient(region, *[x.reshape(1, -1) for x in batch], 10.0)
    assert packed_loss.item() == pytest.approx(loss.item(), abs=1e-12)
    assert torch.equal(packed_grad.reshape(grad.shape), grad)


@every_region
def test_an_empty_mask_gives_a_finite_zero_and_zero_gradient(region):
    logp, logp_mu, advantages, mask = numbers(0)
    loss, grad = loss_and_gradient(region, logp, logp_mu, advantages, torch.zeros_like(mask), 0)
    assert loss.item() == 0
    assert not grad.any()


@every_region
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [-1e4, -200.0, 200.0, 1e4])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_a_huge_log_ratio_stays_finite(region, dtype, d, advantage):
    logp = torch.full((1, 2), d, dtype=dtype)
    zeros = torch.zeros(1, 2, dtype=dtype)
    loss, grad = loss_and_gradient(region, logp, zeros, zeros + advantage, torch.ones(1, 2), 2)
    assert torch.isfinite(loss)
    assert torch.isfinite(grad).all()


@every_region
def test_gradient_flows_into_the_policy_only(region):
    logp, logp_mu, advantages, mask = numbers(5)
    leaves = [x.requires_grad_() for x in (logp, logp_mu, advantages)]
    region(*leaves, mask).per_token_loss.sum().backward()
    assert leaves[0].grad is not None
    assert leaves[0].grad.any()
    assert leaves[1].grad is None
    assert leaves[2].grad is None


@every_region
def test_tokens_that_are_not_kept_get_no_gradient(region):
    logp, logp_mu, advantages, mask = numbers(11, rows=6, length=40)
    # An episode has one advantage; sequence ratios spread each token's gradient over all of its episode.
    advantages = advantages[:, :1].expand(advantages.shape)
    result = region(logp, logp_mu, advantages, mask)
    _, grad = loss_and_gradient(region, logp, logp_mu, advantages, mask, 1.0)
    assert not grad[~result.kept_mask].any()
    assert grad[result.kept_mask].all()


@given(
    d=st.lists(st.floats(-3, 3), min_size=1, max_size=40),
    seed=st.integers(0, 10_000),
    quantile=st.floats(0.05, 1.0),
)
@settings(max_examples=80, deadline=None)
def test_sat_never_exceeds_ppo_at_any_token(d, seed, quantile):
    logp = torch.tensor(d, dtype=torch.float64)
    advantages = torch.randn(len(d), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    zeros, mask = torch.zeros_like(logp), torch.ones_like(logp)
    threshold = sat_threshold(logp, mask, quantile=quantile)
    adaptive = -sat(logp, zeros, advantages, mask, threshold=threshold, **EPS).per_token_loss
    plain = -ppo_clip(logp, zeros, advantages, mask, **EPS).per_token_loss
    assert (adaptive <= plain + 1e-12).all()


@given(d=st.lists(st.floats(-1, 1), min_size=1, max_size=50), quantile=st.floats(0.01, 1.0))
@settings(max_examples=60, deadline=None)
def test_the_threshold_is_the_smallest_value_with_enough_at_or_below_it(d, quantile):
    magnitudes = torch.tensor(d, dtype=torch.float64).abs()
    threshold = sat_threshold(torch.tensor(d, dtype=torch.float64), torch.ones(len(d)), quantile=quantile)
    assert threshold in magnitudes
    needed = quantile * len(d) - 1e-6
    assert (magnitudes <= threshold).sum() >= needed
    assert (magnitudes < threshold).sum() < needed + 1e-5
