"""Numbers over all action tokens of a step, as vectors (N,) gathered from every micro-batch and rank.

Words. A token is *masked* when the trust region throws it out whatever the sign of its advantage (the band of DIS, the
discrepancy mask, IcePop, masked IS, an unknown old log-prob). It is *clipped* when it stays but loses its gradient
because it has moved far enough in the direction of its advantage (PPO, SAT, GSPO, DPPO-TV). Masking is a sign that the
batch does not fit the policy; clipping is a trust region at work. The guard of the step judges masking alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from online_agent.algo.values import explained_variance
from online_agent.learner.batching import MicroBatch
from online_agent.learner.policy_learner import PolicyPass
from online_agent.learner.report import RATIO_QUANTILES, MetricSheet
from online_agent.learner.value_learner import ValuePass


@dataclass(frozen=True, slots=True)
class TokenTable:
    """One entry per action token of the step, in the same order in every column; versions as float.

    ``reference_N``: log-probs ratios were taken against. Without a critic values and returns are NaN.
    """

    logp_N: Tensor
    logp_mu_N: Tensor
    reference_N: Tensor
    advantages_N: Tensor
    values_N: Tensor
    returns_N: Tensor
    versions_N: Tensor

    def stacked(self) -> Tensor:
        """(7, N), the columns in field order."""
        return torch.stack(
            [
                self.logp_N,
                self.logp_mu_N,
                self.reference_N,
                self.advantages_N,
                self.values_N,
                self.returns_N,
                self.versions_N,
            ]
        )

    @classmethod
    def unstacked(cls, x_KN: Tensor) -> TokenTable:
        return cls(*x_KN.unbind(0))


def own_columns(
    batches: Sequence[MicroBatch], first: ValuePass | None, advantages: Sequence[Tensor], seen: PolicyPass
) -> Tensor:
    """(7, N) of this rank's tokens, to be gathered from all ranks and read as a ``TokenTable``."""
    logp_N = torch.cat(seen.logps)
    nothing_N = torch.full_like(logp_N, float("nan"))
    return TokenTable(
        logp_N=logp_N,
        logp_mu_N=torch.cat([batch.logp_mu_N for batch in batches]),
        reference_N=torch.cat(seen.reference),
        advantages_N=torch.cat(list(advantages)),
        values_N=nothing_N if first is None else torch.cat(first.values),
        returns_N=nothing_N if first is None else torch.cat(first.targets),
        versions_N=torch.cat([batch.versions_N for batch in batches]).float(),
    ).stacked()


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Where the action tokens of a step fell."""

    num_total: int
    num_kept: int
    num_in_mask: int
    num_masked_low: int
    num_masked_high: int
    num_clipped_low: int
    num_clipped_high: int

    @classmethod
    def of(cls, metrics: Mapping[str, float], num_total: int) -> TokenCounts:
        """From the region's metrics over the step; tokens that are not in them count as masked."""
        names = ("kept", "in_mask", "masked_low", "masked_high", "clipped_low", "clipped_high")
        return cls(num_total, *(int(metrics[f"num_{name}"]) for name in names))

    def share(self, count: int) -> float:
        return count / self.num_total if self.num_total else 0.0

    @property
    def masked_share(self) -> float:
        return 1.0 - self.num_in_mask / self.num_total if self.num_total else 1.0


def trust_region_fault(counts: TokenCounts, max_masked_share: float) -> str | None:
    """Why the step must not be taken; None when its tokens fit the policy well enough."""
    if counts.masked_share > max_masked_share:
        return f"trust region masks {counts.masked_share:.3f} of the tokens, above {max_masked_share}"
    if not counts.num_kept:
        return "trust region leaves no token a gradient: all are clipped"
    return None


def not_finite_reason(table: TokenTable, *, has_critic: bool) -> str | None:
    """The first column that holds a value which is not finite, in plain words; None when all are finite."""
    of_critic = (("value", table.values_N), ("return", table.returns_N)) if has_critic else ()
    of_policy = (
        ("advantage", table.advantages_N),
        ("log-prob", table.logp_N),
        ("reference log-prob", table.reference_N),
    )
    for what, column in (*of_critic, *of_policy):
        num_bad = int((~torch.isfinite(column)).sum())
        if num_bad:
            return f"{what} is not finite on {num_bad} of {column.numel()} action tokens"
    return None


def token_metrics(sheet: MetricSheet, table: TokenTable, version: int, *, has_critic: bool) -> None:
    """Mismatch, ratios, advantages and the critic's fit. Only action tokens enter any of them."""
    gap_N = (table.logp_N - table.logp_mu_N).double()
    ratio_N = gap_N.clamp(-20, 20).exp()
    own_N = gap_N[table.versions_N == version].abs()
    sheet.put(
        mismatch__mean_abs_logp=float(gap_N.abs().mean()),
        mismatch__max_abs_logp=float(gap_N.abs().max()),
        mismatch__current_version_tokens=float(own_N.numel()),
        mismatch__current_version_mean_abs_logp=float(own_N.mean()) if own_N.numel() else None,
        mismatch__current_version_max_abs_logp=float(own_N.max()) if own_N.numel() else None,
        ratio__mean=float(ratio_N.mean()),
        ratio__effective_sample_share=float(ratio_N.sum().square() / (ratio_N.square().sum() * ratio_N.numel())),
        ratio__kl=float((ratio_N - 1 - gap_N).mean()),
        reference__mean_abs_log_ratio=float((table.logp_N - table.reference_N).abs().mean()),
        reference__mean_abs_discrepancy=float((table.reference_N - table.logp_mu_N).abs().mean()),
        advantage__mean=float(table.advantages_N.mean()),
        advantage__std=float(table.advantages_N.std(unbiased=False)),
    )
    quantiles = torch.quantile(ratio_N, torch.tensor(RATIO_QUANTILES, dtype=ratio_N.dtype, device=ratio_N.device))
    for q, value in zip(RATIO_QUANTILES, quantiles.tolist(), strict=True):
        sheet.put(**{f"ratio__q{round(q * 100):02d}": value})
    if has_critic:
        values_N = table.values_N
        sheet.put(
            critic__loss=float((values_N - table.returns_N).square().mean()),
            critic__value_mean=float(values_N.mean()),
            critic__explained_variance=float(explained_variance(values_N, table.returns_N, torch.ones_like(values_N))),
        )


def region_metrics(
    sheet: MetricSheet, counts: TokenCounts, metrics: Mapping[str, float], threshold: Tensor | None
) -> None:
    """What the trust region did to the step's tokens."""
    sheet.put(
        tokens__kept=float(counts.num_kept),
        tokens__masked_share=counts.masked_share,
        tokens__masked_low_share=counts.share(counts.num_masked_low),
        tokens__masked_high_share=counts.share(counts.num_masked_high),
        tokens__clipped_low_share=counts.share(counts.num_clipped_low),
        tokens__clipped_high_share=counts.share(counts.num_clipped_high),
        tokens__active_share=counts.share(counts.num_kept),
    )
    if "num_gated" in metrics:
        total = max(metrics["num_actions"], 1.0)
        sheet.put(
            sat__gate_rate=metrics["num_gated"] / total,
            sat__mean_eps_low=metrics["sum_eps_low"] / total,
            sat__mean_eps_high=metrics["sum_eps_high"] / total,
            sat__min_c=metrics["min_c"],
            sat__threshold=None if threshold is None else float(threshold),
        )
