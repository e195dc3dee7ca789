"""The four independent choices an objective is made of, as frozen data without torch:

    advantage estimator x reference (what the ratio is taken against) x trust region x aggregation

Each part names itself by ``kind``, so that a TOML table is one: ``{kind = "dis", eps_high = 5.0}``. Numbers left out
are the part's defaults, unknown ones and those out of bounds are errors. What the parts compute lives in
``online_agent.algo``.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ConfigDict, Discriminator
from pydantic.dataclasses import dataclass

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

Positive = Annotated[float, Gt(0)]
Share = Annotated[float, Gt(0), Lt(1)]
UnitInterval = Annotated[float, Ge(0), Le(1)]


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Critic:
    """K updates per actor update; ``lam`` is the lambda of its targets. Its attention is frozen unless told otherwise.

    ``values_from``: advantages come from the values before the K updates, or after them.
    """

    updates: Annotated[int, Ge(1)] = 2
    is_attention_frozen: bool = True
    lam: UnitInterval = 1.0
    values_from: Literal["before", "after"] = "before"
    value_clip: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class SkipObservationGae:
    """GAE over action tokens (arXiv 2607.07508 eq. 4-5), lambda = 1 - 1/(alpha l) for the policy."""

    kind: Literal["skip_observation_gae"] = "skip_observation_gae"
    alpha: Positive = 1.5
    gamma: UnitInterval = 1.0
    critic: Critic = field(default_factory=Critic)
    is_whitened: bool = False
    is_bootstrapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class PlainGae:
    """The same recursion through observation tokens too."""

    kind: Literal["plain_gae"] = "plain_gae"
    alpha: Positive = 1.5
    gamma: UnitInterval = 1.0
    critic: Critic = field(default_factory=Critic)
    is_whitened: bool = False
    is_bootstrapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class StepLevelGae:
    """One value and one advantage per turn: ``value`` of a turn is the mean over its tokens or that of the last."""

    kind: Literal["step_level_gae"] = "step_level_gae"
    value: Literal["mean", "last"] = "mean"
    alpha: Positive = 1.5
    gamma: UnitInterval = 1.0
    critic: Critic = field(default_factory=Critic)
    is_whitened: bool = False
    is_bootstrapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class RunningMean:
    """No critic: reward minus the mean of the ``window`` rewards before it, of the stream or of the same task.

    ``window`` unset: 128 of the stream, 8 of a task (arXiv 2607.07508).
    """

    kind: Literal["running_mean"] = "running_mean"
    over: Literal["stream", "task"] = "stream"
    window: Annotated[int, Ge(1)] | None = None
    is_whitened: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class GroupNormalised:
    """No critic: reward against the other rollouts of the same task (GRPO; without the division Dr. GRPO)."""

    kind: Literal["group_normalised"] = "group_normalised"
    group_size: Annotated[int, Ge(2)] = 4
    is_divided_by_std: bool = True
    is_whitened: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class EngineLogProbs:
    """pi/mu: what the engine recorded (bypass)."""

    kind: Literal["engine"] = "engine"


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Ewma:
    """prox = the average of published weights; it starts anew when the active ratio falls below ``tau``.

    ``staleness_versions`` unset: W_stale is measured.
    """

    kind: Literal["ewma"] = "ewma"
    tau: Share = 0.9
    staleness_versions: Positive | None = None


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class LinearProx:
    """prox = a mu + (1 - a) pi, per token and detached: no second model (arXiv 2512.06547)."""

    kind: Literal["linear_prox"] = "linear_prox"
    weight_on_mu: Share = 0.5


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class LogLinearProx:
    """prox between mu and pi in log space, per token and detached."""

    kind: Literal["loglinear_prox"] = "loglinear_prox"
    weight_on_mu: Share = 0.5


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Recomputed:
    """The log-probs of the weights at hand before the update ("async" of arXiv 2605.12070)."""

    kind: Literal["recomputed"] = "recomputed"


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class ExactOld:
    """The trainer's log-prob of each token under the very version that sampled it (arXiv 2605.12070).

    ``snapshot`` reloads the versions of the window; ``dedicated`` asks a second process that holds them;
    ``interruption`` pauses the engine before each update and scores partial generations too.
    """

    kind: Literal["exact_old"] = "exact_old"
    route: Literal["snapshot", "dedicated", "interruption"] = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Dis:
    """Double-sided mask, 1 - eps_low < r < 1 + eps_high (arXiv 2607.07508 eq. 1-3); the coding band by default.

    Against a reference other than the engine's log-probs the band judges r_s = pi/prox, tokens whose prox/mu leaves
    [1/max_discrepancy, max_discrepancy] are dropped too, and what is kept weighs sg(pi/mu).
    """

    kind: Literal["dis"] = "dis"
    eps_low: Share = 0.8
    eps_high: Positive = 3.0
    max_discrepancy: Annotated[float, Gt(1)] = 2.0


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class PpoClip:
    """min(r A, clip(r) A); clip-higher when the two differ."""

    kind: Literal["ppo_clip"] = "ppo_clip"
    eps_low: Share = 0.2
    eps_high: Positive = 0.2


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Sat:
    """Endpoints narrowed by how stale the token is (arXiv 2607.18722). ``over``: what the quantile is taken over."""

    kind: Literal["sat"] = "sat"
    eps_low: Share = 0.2
    eps_high: Positive = 0.2
    quantile: Share = 0.9
    over: Literal["step", "microbatch"] = "step"


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class SatGspo:
    """SAT with the sequence ratio exp(mean_t d) in place of r."""

    kind: Literal["sat_gspo"] = "sat_gspo"
    eps_low: Share = 3e-4
    eps_high: Positive = 4e-4
    quantile: Share = 0.9
    over: Literal["step", "microbatch"] = "step"


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Gspo:
    """The sequence ratio, clipped (arXiv 2507.18071)."""

    kind: Literal["gspo"] = "gspo"
    eps_low: Share = 3e-4
    eps_high: Positive = 4e-4


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class DppoTv:
    """Keep a token that moves back, or whose probability moved by at most ``delta`` (arXiv 2602.04879)."""

    kind: Literal["dppo_tv"] = "dppo_tv"
    delta: Share = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Cispo:
    """sg(clip(r)) A log pi (arXiv 2506.13585)."""

    kind: Literal["cispo"] = "cispo"
    eps_low: Annotated[float, Gt(0), Le(1)] = 1.0
    eps_high: Positive = 4.0


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class MaskAndClip:
    """Mask on prox/mu, clip on pi/prox (arXiv 2605.12070 eq. 2.1); weighted by sg(prox/mu), or by 1."""

    kind: Literal["mask_and_clip"] = "mask_and_clip"
    eps_low: Share = 0.2
    eps_high: Positive = 0.2
    max_discrepancy: Annotated[float, Gt(1)] = 2.0
    is_weighted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class Tis:
    """min(prox/mu, cap) weighs the clipped term (Yao et al. 2025)."""

    kind: Literal["tis"] = "tis"
    eps_low: Share = 0.2
    eps_high: Positive = 0.2
    cap: Positive = 2.0


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class IcePop:
    """prox/mu weighs the clipped term inside [low, high], 0 outside (arXiv 2510.18855)."""

    kind: Literal["icepop"] = "icepop"
    eps_low: Share = 0.2
    eps_high: Positive = 0.2
    low: Annotated[float, Gt(0), Le(1)] = 0.5
    high: Annotated[float, Ge(1)] = 5.0


@dataclass(frozen=True, slots=True, kw_only=True, config=STRICT)
class MaskedIs:
    """prox/mu weighs the clipped term up to ``cap``, 0 above (Liu et al. 2025)."""

    kind: Literal["masked_is"] = "masked_is"
    eps_low: Share = 0.2
    eps_high: Positive = 0.2
    cap: Positive = 2.0


Gae = SkipObservationGae | PlainGae | StepLevelGae
Advantage = Annotated[
    SkipObservationGae | PlainGae | StepLevelGae | RunningMean | GroupNormalised, Discriminator("kind")
]
Reference = Annotated[EngineLogProbs | Ewma | LinearProx | LogLinearProx | Recomputed | ExactOld, Discriminator("kind")]
TrustRegion = Annotated[
    Dis | PpoClip | Sat | SatGspo | Gspo | DppoTv | Cispo | MaskAndClip | Tis | IcePop | MaskedIs,
    Discriminator("kind"),
]
Aggregation = Literal["global_token_mean", "kept_token_mean", "per_episode_mean", "sequence_mean"]
