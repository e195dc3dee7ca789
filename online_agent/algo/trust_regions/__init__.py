"""What happens to a token whose ratio moved: masked, clipped or weighted.

Every function takes ``(logp, logp_mu, advantages, mask, *, ...)`` and returns a ``Surrogate``:
per-token loss, kept mask, metrics.
"""

from online_agent.algo.ratios import Metrics, Surrogate, merge_metrics
from online_agent.algo.trust_regions.cispo import cispo
from online_agent.algo.trust_regions.decoupled import decoupled_ppo, icepop, masked_is, tis
from online_agent.algo.trust_regions.dis import dis
from online_agent.algo.trust_regions.dppo import dppo_tv
from online_agent.algo.trust_regions.gspo import gspo
from online_agent.algo.trust_regions.ppo import ppo_clip
from online_agent.algo.trust_regions.sat import sat, sat_gspo, sat_threshold, sequence_log_ratio

__all__ = [
    "Metrics",
    "Surrogate",
    "cispo",
    "decoupled_ppo",
    "dis",
    "dppo_tv",
    "gspo",
    "icepop",
    "masked_is",
    "merge_metrics",
    "ppo_clip",
    "sat",
    "sat_gspo",
    "sat_threshold",
    "sequence_log_ratio",
    "tis",
]
