"""What the ratio is taken against, where that is not the engine's own log-probs."""

from online_agent.algo.references.active import ActiveTokens, active_ratio
from online_agent.algo.references.ewma import EwmaReference, ewma_beta
from online_agent.algo.references.interpolated import linear_prox, loglinear_prox

__all__ = ["ActiveTokens", "EwmaReference", "active_ratio", "ewma_beta", "linear_prox", "loglinear_prox"]
