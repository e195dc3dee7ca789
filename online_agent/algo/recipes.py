"""A recipe names one composition of four independent choices, as frozen data:

    advantage estimator x reference (what the ratio is taken against) x trust region x aggregation

``surrogate`` and ``aggregate`` turn the data into numbers; nothing else in a recipe computes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from online_agent.algo.aggregation import global_token_mean, kept_token_mean, per_episode_mean
from online_agent.algo.trust_regions import Surrogate, cispo, decoupled_ppo, dis, gspo, ppo_clip
from online_agent.errors import UnknownName

# The coding band of SAO: 0.2 < r < 4.
CODING_EPS_LOW, CODING_EPS_HIGH = 0.8, 3.0


@dataclass(frozen=True, slots=True)
class SkipObservationGae:
    """Critic and GAE over action tokens; lambda = 1 - 1/(alpha l) for the policy, ``critic_lambda`` for the targets."""

    alpha: float = 1.5
    gamma: float = 1.0
    critic_lambda: float = 1.0


@dataclass(frozen=True, slots=True)
class PlainGae(SkipObservationGae):
    """The same through observation tokens."""


@dataclass(frozen=True, slots=True)
class RunningMean:
    """No critic: reward minus the mean of the last ``window`` rewards of the stream."""

    window: int = 128


@dataclass(frozen=True, slots=True)
class GroupNormalised:
    """No critic: reward against the other rollouts of the same prompt."""

    group_size: int = 8
    divide_by_std: bool = True


@dataclass(frozen=True, slots=True)
class EngineLogProbs:
    """pi/mu against what the engine recorded."""


@dataclass(frozen=True, slots=True)
class Ewma:
    """pi/prox and prox/mu, prox the average of published weights; reset when the active ratio falls below ``tau``."""

    tau: float = 0.9
    staleness_versions: float | None = None


@dataclass(frozen=True, slots=True)
class LogLinear:
    """prox between mu and pi in log space, computed per token without a second model."""

    weight_on_mu: float = 0.5


@dataclass(frozen=True, slots=True)
class Dis:
    eps_low: float = CODING_EPS_LOW
    eps_high: float = CODING_EPS_HIGH


@dataclass(frozen=True, slots=True)
class PpoClip:
    eps_low: float = 0.2
    eps_high: float = 0.2


@dataclass(frozen=True, slots=True)
class Gspo:
    eps_low: float = 3e-4
    eps_high: float = 4e-4


@dataclass(frozen=True, slots=True)
class Cispo:
    eps_low: float = 1.0
    eps_high: float = 4.0


@dataclass(frozen=True, slots=True)
class MaskAndClip:
    """Mask on prox/mu, clip on pi/prox (arXiv 2605.12070 eq. 2.1)."""

    eps: float = 0.2
    max_discrepancy: float = 2.0
    is_weighted: bool = True


Advantage = SkipObservationGae | PlainGae | RunningMean | GroupNormalised
Reference = EngineLogProbs | Ewma | LogLinear
TrustRegion = Dis | PpoClip | Gspo | Cispo | MaskAndClip
Aggregation = Literal["global_token_mean", "kept_token_mean", "per_episode_mean"]


@dataclass(frozen=True, slots=True)
class Recipe:
    name: str
    advantage: Advantage
    reference: Reference
    trust_region: TrustRegion
    aggregation: Aggregation = "global_token_mean"

    @property
    def has_critic(self) -> bool:
        return isinstance(self.advantage, SkipObservationGae)


RECIPES: dict[str, Recipe] = {
    each.name: each
    for each in (
        Recipe("sao", SkipObservationGae(), EngineLogProbs(), Dis()),
        Recipe("sao-ewma", SkipObservationGae(), Ewma(), MaskAndClip()),
        Recipe("sao-loglinear", SkipObservationGae(), LogLinear(), MaskAndClip()),
        Recipe("sao-plain-gae", PlainGae(), EngineLogProbs(), Dis()),
        Recipe("running-mean-dis", RunningMean(), EngineLogProbs(), Dis()),
        Recipe("ppo-bypass", SkipObservationGae(), EngineLogProbs(), PpoClip()),
        Recipe("grpo", GroupNormalised(), EngineLogProbs(), PpoClip(eps_high=0.28), "per_episode_mean"),
        Recipe("grpo-dis", GroupNormalised(), EngineLogProbs(), Dis()),
        Recipe("gspo", GroupNormalised(), EngineLogProbs(), Gspo(), "per_episode_mean"),
        Recipe("cispo", GroupNormalised(), EngineLogProbs(), Cispo()),
    )
}


def find_recipe(name: str) -> Recipe:
    """The recipe of that name. Raises UnknownName listing the known ones."""
    if name not in RECIPES:
        raise UnknownName(f"unknown recipe {name!r}; known: {', '.join(sorted(RECIPES))}")
    return RECIPES[name]


def surrogate(
    region: TrustRegion,
    logp: Tensor,
    logp_mu: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    logp_prox: Tensor | None = None,
    episode_BT: Tensor | None = None,
) -> Surrogate:
    """Per-token loss, kept mask and metrics of ``region``. ``logp_prox`` is needed by ``MaskAndClip`` only."""
    match region:
        case Dis(eps_low=low, eps_high=high):
            return dis(logp, logp_mu, advantages, mask, eps_low=low, eps_high=high)
        case PpoClip(eps_low=low, eps_high=high):
            return ppo_clip(logp, logp_mu, advantages, mask, eps_low=low, eps_high=high)
        case Gspo(eps_low=low, eps_high=high):
            return gspo(logp, logp_mu, advantages, mask, eps_low=low, eps_high=high, episode_BT=episode_BT)
        case Cispo(eps_low=low, eps_high=high):
            return cispo(logp, logp_mu, advantages, mask, eps_low=low, eps_high=high)
        case MaskAndClip():
            if logp_prox is None:
                raise ValueError("mask and clip need the log-probs of the proximal policy")
            return decoupled_ppo(
                logp,
                logp_mu,
                advantages,
                mask,
                logp_prox=logp_prox,
                eps=region.eps,
                max_discrepancy=region.max_discrepancy,
                is_weighted=region.is_weighted,
            )


def aggregate(
    aggregation: Aggregation,
    result: Surrogate,
    mask: Tensor,
    denominator: Tensor | float,
    *,
    episode_BT: Tensor | None = None,
) -> Tensor:
    """One number. ``denominator`` counts, over the whole step, what the aggregation averages over:
    action tokens, kept tokens or episodes."""
    match aggregation:
        case "global_token_mean":
            return global_token_mean(result.per_token_loss, mask, denominator)
        case "kept_token_mean":
            return kept_token_mean(result.per_token_loss, result.kept_mask, denominator)
        case "per_episode_mean":
            return per_episode_mean(result.per_token_loss, mask, denominator, episode_BT=episode_BT)
