"""The networks a recipe needs, each under its own DeepSpeed engine, and what of them learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from online_agent.config.training import LearnerSettings
from online_agent.errors import ConfigError
from online_agent.learner.lora import TrainedAdapter, attach_adapter, base_of, plain_names
from online_agent.learner.models import Actor, Critic, load_causal_lm
from online_agent.learner.packing import feed_packed
from online_agent.learner.ranks import Ranks
from online_agent.learner.reference import PolicyReference
from online_agent.learner.routing import RoutingShape
from online_agent.learner.zero_engine import ZeroEngine
from online_agent.recipes import Recipe
from online_agent.weights.adapter import is_adapter


@dataclass(frozen=True, slots=True)
class Networks:
    """``critic`` is None where advantages need none, ``routing_shape`` where the policy has no mixtures of experts.

    ``backbone_prefix``: the backbone in the actor's names. ``adapter`` is None where all weights of the policy learn.
    """

    actor: ZeroEngine
    critic: ZeroEngine | None
    reference: PolicyReference
    vocab_size: int
    backbone_prefix: str
    routing_shape: RoutingShape | None
    adapter: TrainedAdapter | None

    def fresh_critic(self, actor: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters a new critic of ``actor`` (by the actor network's names) starts from."""
        assert self.critic is not None
        network = self.critic.network
        assert isinstance(network, Critic)
        return network.initial_parameters(plain_names(actor), self.backbone_prefix)


def build_networks(model_dir: Path, settings: LearnerSettings, recipe: Recipe, ranks: Ranks) -> Networks:
    """Actor, critic and average of the policy in ``model_dir``. Raises ConfigError for a model that does not fit."""
    torch.manual_seed(settings.seed)
    causal_lm = load_causal_lm(model_dir)
    actor = policy_of(causal_lm).to(ranks.device)
    if settings.batching == "packed":
        feed_packed(causal_lm, settings)
    critic = critic_of(causal_lm, settings, recipe)
    adapter = None
    if settings.adapter is not None:
        adapter = TrainedAdapter(settings.adapter, base_of(model_dir), settings.seed)
        attach_adapter(actor, settings.adapter, seed=settings.seed)
    elif is_adapter(model_dir):
        raise ConfigError(f"{model_dir.parent.name} is an adapter: set learner.actor = 'lora' to train it further")
    reference = PolicyReference(actor, recipe.average, replays_routing=recipe.replays_routing)
    return Networks(
        actor=ZeroEngine(
            actor, lr=settings.actor_lr, clip_norm=settings.actor_clip_norm, settings=settings, ranks=ranks
        ),
        critic=None
        if critic is None
        else ZeroEngine(
            critic, lr=settings.critic_lr, clip_norm=settings.critic_clip_norm, settings=settings, ranks=ranks
        ),
        reference=reference,
        vocab_size=int(causal_lm.config.get_text_config().vocab_size),
        backbone_prefix=f"causal_lm.{causal_lm.base_model_prefix}.",
        routing_shape=actor.routing_shape,
        adapter=adapter,
    )


def policy_of(causal_lm: Any) -> Actor:
    """The policy; what of it requires a gradient is what the actor's optimiser trains: every weight."""
    return Actor(causal_lm).train()


def critic_of(causal_lm: Any, settings: LearnerSettings, recipe: Recipe) -> Critic | None:
    """A copy of the policy's backbone with a scalar head, its attention frozen or not; None where none is needed."""
    if recipe.critic is None:
        return None
    pattern = settings.critic_freeze_pattern if recipe.critic.is_attention_frozen else None
    return Critic(causal_lm, bias_init=settings.critic_bias_init, freeze_pattern=pattern).train()
