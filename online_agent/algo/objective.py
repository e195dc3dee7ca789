"""The data of a recipe turned into numbers: the surrogate of its trust region, and the mean it is aggregated by."""

from __future__ import annotations

from torch import Tensor

from online_agent.algo.aggregation import global_token_mean, kept_token_mean, per_episode_mean
from online_agent.algo.ratios import log_ratio
from online_agent.algo.trust_regions import (
    Surrogate,
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
    sequence_log_ratio,
    tis,
)
from online_agent.recipes.parts import (
    Aggregation,
    Cispo,
    Dis,
    DppoTv,
    Gspo,
    IcePop,
    MaskAndClip,
    MaskedIs,
    PpoClip,
    Sat,
    SatGspo,
    Tis,
    TrustRegion,
)


def surrogate(
    region: TrustRegion,
    logp: Tensor,
    logp_mu: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    logp_prox: Tensor | None = None,
    threshold: Tensor | None = None,
    episode_BT: Tensor | None = None,
) -> Surrogate:
    """Per-token loss, kept mask and metrics of ``region``.

    ``logp_prox`` is what ratios are taken against; None: the engine's log-probs stand in, so that prox/mu is 1.
    ``threshold`` is SAT's q, by default that of these tokens alone. ``episode_BT`` as in ``episodes.episode_index``.
    """
    against = logp_mu if logp_prox is None else logp_prox
    common = (logp, against, advantages, mask)
    match region:
        case Dis():
            return dis(
                logp, logp_mu, advantages, mask, eps_low=region.eps_low, eps_high=region.eps_high,
                logp_prox=logp_prox, max_discrepancy=region.max_discrepancy,
            )  # fmt: skip
        case PpoClip():
            return ppo_clip(*common, eps_low=region.eps_low, eps_high=region.eps_high)
        case Cispo():
            return cispo(*common, eps_low=region.eps_low, eps_high=region.eps_high)
        case DppoTv():
            return dppo_tv(*common, max_difference=region.delta)
        case Gspo():
            return gspo(*common, eps_low=region.eps_low, eps_high=region.eps_high, episode_BT=episode_BT)
        case Sat():
            q = quantile_of(region, logp, against, mask) if threshold is None else threshold
            return sat(*common, eps_low=region.eps_low, eps_high=region.eps_high, threshold=q)
        case SatGspo():
            q = quantile_of(region, logp, against, mask, episode_BT=episode_BT) if threshold is None else threshold
            return sat_gspo(
                *common, eps_low=region.eps_low, eps_high=region.eps_high, threshold=q, episode_BT=episode_BT
            )
        case MaskAndClip() | Tis() | IcePop() | MaskedIs():
            return _decoupled(region, logp, logp_mu, advantages, mask, against)


def _decoupled(
    region: MaskAndClip | Tis | IcePop | MaskedIs,
    logp: Tensor,
    logp_mu: Tensor,
    advantages: Tensor,
    mask: Tensor,
    logp_prox: Tensor,
) -> Surrogate:
    low, high = region.eps_low, region.eps_high
    common = (logp, logp_mu, advantages, mask)
    match region:
        case MaskAndClip():
            return decoupled_ppo(
                *common, logp_prox=logp_prox, eps_low=low, eps_high=high,
                max_discrepancy=region.max_discrepancy, is_weighted=region.is_weighted,
            )  # fmt: skip
        case Tis():
            return tis(*common, logp_prox=logp_prox, cap=region.cap, eps_low=low, eps_high=high)
        case IcePop():
            return icepop(*common, logp_prox=logp_prox, low=region.low, high=region.high, eps_low=low, eps_high=high)
        case MaskedIs():
            return masked_is(*common, logp_prox=logp_prox, cap=region.cap, eps_low=low, eps_high=high)


def distances(
    region: Sat | SatGspo, logp: Tensor, logp_reference: Tensor, mask: Tensor, *, episode_BT: Tensor | None = None
) -> Tensor:
    """d of each token as SAT's quantile sees it: its own, or on sequences the mean of its episode. No gradient."""
    if isinstance(region, SatGspo):
        return sequence_log_ratio(logp, logp_reference, mask, episode_BT=episode_BT).detach()
    return log_ratio(logp, logp_reference, mask).detach()


def quantile_of(
    region: Sat | SatGspo, logp: Tensor, logp_reference: Tensor, mask: Tensor, *, episode_BT: Tensor | None = None
) -> Tensor:
    """0-d q over these tokens."""
    d = distances(region, logp, logp_reference, mask, episode_BT=episode_BT)
    return sat_threshold(d, mask, quantile=region.quantile)


def aggregate(
    aggregation: Aggregation,
    result: Surrogate,
    mask: Tensor,
    denominator: Tensor | float,
    *,
    episode_BT: Tensor | None = None,
) -> Tensor:
    """One number. ``denominator`` counts, over the whole step, what the aggregation averages over: action tokens,
    kept tokens or episodes.

    ``sequence_mean`` is the mean over sequences of a term that all tokens of a sequence share. The mean of that term
    over the sequence's tokens is the term itself, so it is ``per_episode_mean``, under the name of the papers with
    sequence ratios.
    """
    match aggregation:
        case "global_token_mean":
            return global_token_mean(result.per_token_loss, mask, denominator)
        case "kept_token_mean":
            return kept_token_mean(result.per_token_loss, result.kept_mask, denominator)
        case "per_episode_mean" | "sequence_mean":
            return per_episode_mean(result.per_token_loss, mask, denominator, episode_BT=episode_BT)
