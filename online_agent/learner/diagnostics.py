"""Numbers over all action tokens of a step, as vectors (N,) gathered from every micro-batch and rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from online_agent.algo.trust_regions import dis
from online_agent.learner.report import RATIO_QUANTILES, MetricSheet


@dataclass(frozen=True, slots=True)
class TokenTable:
    """One entry per action token of the step, in the same order in every column; versions as float."""

    logp_N: Tensor
    logp_mu_N: Tensor
    advantages_N: Tensor
    values_N: Tensor
    returns_N: Tensor
    versions_N: Tensor

    def stacked(self) -> Tensor:
        """(6, N), the columns in field order."""
        return torch.stack(
            [self.logp_N, self.logp_mu_N, self.advantages_N, self.values_N, self.returns_N, self.versions_N]
        )

    @classmethod
    def unstacked(cls, x_KN: Tensor) -> TokenTable:
        return cls(*x_KN.unbind(0))


@dataclass(frozen=True, slots=True)
class BandCounts:
    """Where the action tokens fell: inside the trust region, below it, above it; and the step's policy loss."""

    loss: float
    num_total: int
    num_kept: int
    num_below: int
    num_above: int

    @property
    def masked_share(self) -> float:
        return 1.0 - self.num_kept / self.num_total if self.num_total else 1.0


def band_counts(table: TokenTable, *, eps_low: float, eps_high: float) -> BandCounts:
    """DIS's verdict on each token of the step."""
    surrogate = dis(
        table.logp_N,
        table.logp_mu_N,
        table.advantages_N,
        torch.ones_like(table.logp_N),
        eps_low=eps_low,
        eps_high=eps_high,
    )
    return BandCounts(
        loss=float(surrogate.per_token_loss.mean()),
        num_total=table.logp_N.numel(),
        num_kept=int(surrogate.kept_mask.sum()),
        num_below=int(surrogate.metrics["num_below"]),
        num_above=int(surrogate.metrics["num_above"]),
    )


def not_finite_reason(table: TokenTable) -> str | None:
    """The first column that holds a value which is not finite, in plain words; None when all are finite."""
    for what, column in (
        ("value", table.values_N),
        ("return", table.returns_N),
        ("advantage", table.advantages_N),
        ("log-prob", table.logp_N),
    ):
        num_bad = int((~torch.isfinite(column)).sum())
        if num_bad:
            return f"{what} is not finite on {num_bad} of {column.numel()} action tokens"
    return None


def token_metrics(sheet: MetricSheet, table: TokenTable, bands: BandCounts, version: int) -> None:
    """Mismatch, ratios, advantages and the critic's fit. Only action tokens enter any of them."""
    gap_N = (table.logp_N - table.logp_mu_N).double()
    ratio_N = gap_N.clamp(-20, 20).exp()
    own_N = gap_N[table.versions_N == version].abs()
    total = max(bands.num_total, 1)
    sheet.put(
        tokens__kept=float(bands.num_kept),
        tokens__masked_share=bands.masked_share,
        tokens__masked_low_share=bands.num_below / total,
        tokens__masked_high_share=bands.num_above / total,
        mismatch__mean_abs_logp=float(gap_N.abs().mean()),
        mismatch__max_abs_logp=float(gap_N.abs().max()),
        mismatch__current_version_tokens=float(own_N.numel()),
        mismatch__current_version_mean_abs_logp=float(own_N.mean()) if own_N.numel() else None,
        mismatch__current_version_max_abs_logp=float(own_N.max()) if own_N.numel() else None,
        ratio__mean=float(ratio_N.mean()),
        ratio__effective_sample_share=float(ratio_N.sum().square() / (ratio_N.square().sum() * ratio_N.numel())),
        ratio__kl=float((ratio_N - 1 - gap_N).mean()),
        actor__loss=bands.loss,
        critic__loss=float((table.values_N - table.returns_N).square().mean()),
        advantage__mean=float(table.advantages_N.mean()),
        advantage__std=float(table.advantages_N.std(unbiased=False)),
        critic__value_mean=float(table.values_N.mean()),
        critic__explained_variance=explained_variance(table.values_N, table.returns_N),
    )
    quantiles = torch.quantile(ratio_N, torch.tensor(RATIO_QUANTILES, dtype=ratio_N.dtype, device=ratio_N.device))
    for q, value in zip(RATIO_QUANTILES, quantiles.tolist(), strict=True):
        sheet.put(**{f"ratio__q{round(q * 100):02d}": value})


def explained_variance(values_N: Tensor, returns_N: Tensor) -> float:
    """1 - Var(R - V) / Var(R): 1 for a perfect critic, 0 for a constant. nan when all returns are equal."""
    variance = returns_N.double().var(unbiased=False)
    return float(1 - (returns_N - values_N).double().var(unbiased=False) / variance) if variance > 0 else float("nan")
