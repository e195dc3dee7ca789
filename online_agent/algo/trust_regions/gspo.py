"""Group sequence policy optimisation: one ratio per sequence (GSPO, arXiv 2507.18071)."""

from __future__ import annotations

from torch import Tensor

from online_agent.algo.ratios import Surrogate, clipped_surrogate, is_unclipped, masked, ratio_metrics
from online_agent.algo.trust_regions.sat import sequence_log_ratio


def gspo(
    logp_BT: Tensor,
    logp_mu_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    *,
    eps_low: float,
    eps_high: float,
    episode_BT: Tensor | None = None,
) -> Surrogate:
    """loss = -min(rho A, clip(rho, 1-eps_low, 1+eps_high) A) on every action token; rho = exp(mean_t(logp - logp_mu)).

    Aggregate with ``per_episode_mean``: the mean over an episode's tokens gives its sequence loss back.
    Episodes are rows, or numbered by ``episode_BT`` in a packed batch; none may be split over micro-batches.
    """
    d_BT = sequence_log_ratio(logp_BT, logp_mu_BT, mask_BT, episode_BT=episode_BT)
    advantages_BT = masked(advantages_BT, mask_BT)
    kept_BT = mask_BT.bool() & is_unclipped(d_BT, advantages_BT, 1.0 - eps_low, 1.0 + eps_high)
    loss_BT = -clipped_surrogate(d_BT, advantages_BT, 1.0 - eps_low, 1.0 + eps_high)
    return Surrogate(loss_BT, kept_BT, ratio_metrics(d_BT, mask_BT, kept_BT))
