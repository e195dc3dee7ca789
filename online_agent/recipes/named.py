"""The compositions that have a name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from online_agent.errors import UnknownName
from online_agent.recipes.parts import (
    Advantage,
    Aggregation,
    Critic,
    Dis,
    DppoTv,
    EngineLogProbs,
    Ewma,
    ExactOld,
    GroupNormalised,
    Gspo,
    LinearProx,
    LogLinearProx,
    MaskAndClip,
    PlainGae,
    PpoClip,
    Recomputed,
    Reference,
    RunningMean,
    Sat,
    SatGspo,
    SkipObservationGae,
    StepLevelGae,
    TrustRegion,
)

_CLIP_HIGHER = 0.28  # DAPO, arXiv 2503.14476


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One objective. ``replays_routing``: the trainer uses the experts the engine chose (R3, arXiv 2510.11370).

    ``watched_average``: the average of published weights that is kept beside every policy. A recipe that trains
    against another reference only measures how far the policy has moved from it.
    """

    name: str
    advantage: Advantage = field(default_factory=SkipObservationGae)
    reference: Reference = field(default_factory=EngineLogProbs)
    trust_region: TrustRegion = field(default_factory=Dis)
    aggregation: Aggregation = "global_token_mean"
    replays_routing: bool = False
    watched_average: Ewma = field(default_factory=Ewma)

    @property
    def average(self) -> Ewma:
        """The average of published weights: the reference itself, or the one watched."""
        return self.reference if isinstance(self.reference, Ewma) else self.watched_average

    @property
    def critic(self) -> Critic | None:
        """The critic of the advantage estimator; None for one that needs none."""
        return None if isinstance(self.advantage, RunningMean | GroupNormalised) else self.advantage.critic

    @property
    def old_logits_route(self) -> Literal["snapshot", "dedicated", "interruption"] | None:
        """Where exact old log-probs come from; None for a recipe that needs none."""
        return self.reference.route if isinstance(self.reference, ExactOld) else None

    @property
    def group_size(self) -> int | None:
        """How many rollouts of one task are trained together; None when each stands alone."""
        return self.advantage.group_size if isinstance(self.advantage, GroupNormalised) else None


def _named(*recipes: Recipe) -> dict[str, Recipe]:
    return {recipe.name: recipe for recipe in recipes}


RECIPES: dict[str, Recipe] = _named(
    Recipe(name="sao"),
    Recipe(name="sao-ewma", reference=Ewma()),
    Recipe(name="sao-k1", advantage=SkipObservationGae(critic=Critic(updates=1))),
    Recipe(name="sao-unfrozen", advantage=SkipObservationGae(critic=Critic(is_attention_frozen=False))),
    Recipe(name="sao-plain-gae", advantage=PlainGae()),
    Recipe(name="sao-step-mean", advantage=StepLevelGae(value="mean")),
    Recipe(name="running-mean", advantage=RunningMean()),
    Recipe(
        name="grpo",
        advantage=GroupNormalised(),
        trust_region=PpoClip(eps_high=_CLIP_HIGHER),
        aggregation="per_episode_mean",
    ),
    Recipe(name="grpo-dis", advantage=GroupNormalised()),
    Recipe(name="gspo", advantage=GroupNormalised(), trust_region=Gspo(), aggregation="sequence_mean"),
    Recipe(name="vapo", reference=Recomputed(), trust_region=PpoClip(eps_high=_CLIP_HIGHER)),
    Recipe(name="dppo", trust_region=DppoTv()),
    Recipe(name="ppo-bypass", trust_region=PpoClip()),
    Recipe(name="decoupled-exact", reference=ExactOld(), trust_region=MaskAndClip()),
    Recipe(name="decoupled-async", reference=Recomputed(), trust_region=MaskAndClip()),
    Recipe(name="ppo-ewma", reference=Ewma(), trust_region=MaskAndClip(is_weighted=True)),
    Recipe(name="linear-prox", reference=LinearProx(), trust_region=MaskAndClip()),
    Recipe(name="loglinear-prox", reference=LogLinearProx(), trust_region=MaskAndClip()),
    Recipe(name="sat-grpo", advantage=GroupNormalised(), trust_region=Sat(), aggregation="per_episode_mean"),
    Recipe(name="sat-gspo", advantage=GroupNormalised(), trust_region=SatGspo(), aggregation="sequence_mean"),
    Recipe(
        name="sat-gspo-r3",
        advantage=GroupNormalised(),
        trust_region=SatGspo(),
        aggregation="sequence_mean",
        replays_routing=True,
    ),
)


def find_recipe(name: str) -> Recipe:
    """The recipe of that name. Raises UnknownName listing the known ones."""
    if name not in RECIPES:
        raise UnknownName(f"unknown recipe {name!r}; known: {', '.join(sorted(RECIPES))}", param="recipe")
    return RECIPES[name]
