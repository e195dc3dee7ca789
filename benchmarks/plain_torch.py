"""One SAO update as a plain torch loop: padded batches in arrival order, whole logits, no DeepSpeed.

Written from the equations (arXiv 2607.07508), apart from ``online_agent``: actor and critic from Hugging Face classes,
advantages by the recursion over each episode's action tokens, two AdamW. What it adds up is what the learner adds up,
so both report the same losses and gradient norms.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from online_agent.config.training import LearnerSettings
from online_agent.recipes import find_recipe
from online_agent.recipes.parts import Dis, SkipObservationGae
from online_agent.types import TrainingEpisode

_BETAS = (0.9, 0.95)


@dataclass(frozen=True, slots=True)
class Update:
    """Losses before the update, of the last critic pass, and the gradient norm of the actor."""

    actor_loss: float
    critic_loss: float
    critic_loss_last: float
    actor_grad_norm: float


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """B rows of T tokens, padded on the right; ``is_action_BT`` marks the tokens that the policy sampled."""

    token_ids_BT: Tensor
    attention_mask_BT: Tensor
    is_action_BT: Tensor
    logp_mu_BT: Tensor
    rewards_B: Tensor


class PlainTorch:
    """Actor, critic and their optimisers; ``update`` is one step on a batch of episodes."""

    def __init__(self, model_dir: Path, settings: LearnerSettings) -> None:
        self.settings = settings
        recipe = find_recipe("sao")
        assert isinstance(recipe.advantage, SkipObservationGae)
        assert isinstance(recipe.trust_region, Dis)
        self.gae, self.band = recipe.advantage, recipe.trust_region
        self.actor: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, local_files_only=True)
        self.actor.train()
        self.backbone: Any = copy.deepcopy(self.actor.model)
        self.head = nn.Linear(self.actor.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.constant_(self.head.bias, settings.critic_bias_init)
        for name, parameter in self.backbone.named_parameters():
            parameter.requires_grad_(not is_frozen(name))
        self.critic_parameters = [p for p in [*self.backbone.parameters(), *self.head.parameters()] if p.requires_grad]
        self.actor_optimizer = _adamw(list(self.actor.parameters()), settings.actor_lr, settings)
        self.critic_optimizer = _adamw(self.critic_parameters, settings.critic_lr, settings)

    def update(self, episodes: Sequence[TrainingEpisode]) -> Update:
        """K critic updates and one actor update; advantages come from the values before all of them."""
        batches = padded_batches(episodes, self.settings.micro_batch_tokens)
        num_actions = float(sum(episode.num_action_tokens for episode in episodes))
        critic_loss, targets, advantages = 0.0, [], []
        for batch in batches:
            values_BT = self._values(batch)
            advantages_BT, targets_BT = self._credit(batch, values_BT.detach())
            critic_loss += self._critic_backward(batch, values_BT, targets_BT, num_actions)
            targets.append(targets_BT)
            advantages.append(advantages_BT)
        actor_loss = sum(
            self._actor_backward(batch, advantages_BT, num_actions)
            for batch, advantages_BT in zip(batches, advantages, strict=True)
        )
        grad_norm = nn.utils.clip_grad_norm_(self.actor.parameters(), self.settings.actor_clip_norm)
        self.actor_optimizer.step()
        self.actor_optimizer.zero_grad()
        self._critic_step()
        last = critic_loss
        for _ in range(self.gae.critic.updates - 1):
            last = sum(
                self._critic_backward(batch, self._values(batch), targets_BT, num_actions)
                for batch, targets_BT in zip(batches, targets, strict=True)
            )
            self._critic_step()
        return Update(actor_loss, critic_loss, last, float(grad_norm))

    def _values(self, batch: PaddedBatch) -> Tensor:
        """(B, T-1): the value of the state before each token but the first."""
        hidden_BTH = self.backbone(batch.token_ids_BT, attention_mask=batch.attention_mask_BT).last_hidden_state
        values_BT1: Tensor = self.head(hidden_BTH[:, :-1])
        return values_BT1.squeeze(-1)

    def _credit(self, batch: PaddedBatch, values_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages and critic targets (B, T-1): GAE over the action tokens alone, the reward on the last one."""
        advantages_BT, targets_BT = np.zeros(values_BT.shape, np.float32), np.zeros(values_BT.shape, np.float32)
        for row, is_action_T in enumerate(batch.is_action_BT[:, 1:].numpy()):
            at_n = np.flatnonzero(is_action_T)
            values_n, reward = values_BT[row].numpy()[at_n], float(batch.rewards_B[row])
            lam = min(max(1 - 1 / (self.gae.alpha * len(at_n)), 0), 1)
            advantages_BT[row, at_n] = gae(values_n, reward, self.gae.gamma, lam)
            targets_BT[row, at_n] = gae(values_n, reward, self.gae.gamma, 1.0) + values_n
        return torch.from_numpy(advantages_BT), torch.from_numpy(targets_BT)

    def _critic_backward(self, batch: PaddedBatch, values_BT: Tensor, targets_BT: Tensor, num_actions: float) -> float:
        squared_BT = (values_BT - targets_BT).square() * batch.is_action_BT[:, 1:]
        loss = squared_BT.sum() / num_actions
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _critic_step(self) -> None:
        nn.utils.clip_grad_norm_(self.critic_parameters, self.settings.critic_clip_norm)
        self.critic_optimizer.step()
        self.critic_optimizer.zero_grad()

    def _actor_backward(self, batch: PaddedBatch, advantages_BT: Tensor, num_actions: float) -> float:
        logits_BTV = self.actor(batch.token_ids_BT, attention_mask=batch.attention_mask_BT, use_cache=False).logits
        is_action_BT = batch.is_action_BT[:, 1:]
        targets_N = batch.token_ids_BT[:, 1:][is_action_BT]
        logp_N = -F.cross_entropy(logits_BTV[:, :-1][is_action_BT], targets_N, reduction="none")
        ratio_N = (logp_N.detach() - batch.logp_mu_BT[:, 1:][is_action_BT]).exp()
        is_kept_N = (ratio_N > 1 - self.band.eps_low) & (ratio_N < 1 + self.band.eps_high)
        loss = -(ratio_N * is_kept_N * advantages_BT[is_action_BT] * logp_N).sum() / num_actions
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())


def gae(values_n: np.ndarray[Any, Any], reward: float, gamma: float, lam: float) -> np.ndarray[Any, Any]:
    """A_k = delta_k + gamma lam A_{k+1}, backwards over one episode's action tokens."""
    advantages_n, advantage, after = np.zeros_like(values_n), 0.0, 0.0
    for k in range(len(values_n) - 1, -1, -1):
        delta = (reward if k == len(values_n) - 1 else 0.0) + gamma * after - values_n[k]
        advantage = delta + gamma * lam * advantage
        advantages_n[k], after = advantage, values_n[k]
    return advantages_n


def is_frozen(name: str) -> bool:
    """The critic's embeddings and attention projections stand still; its norms, MLPs and head learn."""
    return "embed_tokens" in name or ("self_attn" in name and "norm" not in name)


def padded_batches(episodes: Sequence[TrainingEpisode], max_tokens: int) -> list[PaddedBatch]:
    """Equal numbers of rows in arrival order, each batch padded to its longest, about ``max_tokens`` in each."""
    longest = max(len(episode.token_ids) for episode in episodes)
    num_rows = max(max_tokens // longest, 1)
    return [_padded(episodes[start : start + num_rows]) for start in range(0, len(episodes), num_rows)]


def _padded(episodes: Sequence[TrainingEpisode]) -> PaddedBatch:
    def rows(columns: Sequence[np.ndarray[Any, Any]]) -> Tensor:
        return nn.utils.rnn.pad_sequence([torch.from_numpy(column) for column in columns], batch_first=True)

    return PaddedBatch(
        token_ids_BT=rows([e.token_ids.astype(np.int64) for e in episodes]),
        attention_mask_BT=rows([np.ones(len(e.token_ids), np.int64) for e in episodes]),
        is_action_BT=rows([e.action_mask for e in episodes]),
        logp_mu_BT=rows([e.logprobs for e in episodes]),
        rewards_B=torch.tensor([e.reward for e in episodes]),
    )


def _adamw(parameters: list[nn.Parameter], lr: float, settings: LearnerSettings) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=lr, betas=_BETAS, weight_decay=settings.weight_decay, fused=True)
