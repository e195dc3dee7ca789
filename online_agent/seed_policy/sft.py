"""Warm-up by imitation: Muon on the hidden matrices, AdamW on embeddings and norms, one thread, float32.

Tensor legend: B demonstrations of a micro-batch, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import Qwen3ForCausalLM

from online_agent.seed_policy.dataset import Example
from online_agent.seed_policy.muon import Muon

Progress = Callable[[int, int, float], None]
"""Called with (step, number of steps, loss)."""


@dataclass(frozen=True, slots=True)
class SftSettings:
    steps: int = 380
    batch: int = 32
    micro_batches: int = 4
    muon_lr: float = 0.02
    adamw_lr: float = 6e-3
    warmup_steps: int = 15
    constant_share: float = 0.38
    final_lr_share: float = 0.02
    clip_norm: float = 1.0
    context_weight: float = 0.2
    """Loss weight of prompt and observation tokens; actions weigh 1."""
    context_share: float = 0.3
    """Prompt and observation tokens drawn for the loss; the weight of these makes up for the others."""


def learning_rate_share(step: int, settings: SftSettings) -> float:
    """Linear warm-up, a constant stretch, then linear down to ``final_lr_share`` at the last step."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    decay_start = settings.constant_share * settings.steps
    progress = max(0.0, (step - decay_start) / (settings.steps - 1 - decay_start))
    return 1.0 - (1.0 - settings.final_lr_share) * progress


def fine_tune(
    model: Qwen3ForCausalLM, examples: Iterator[Example], settings: SftSettings, progress: Progress | None = None
) -> None:
    """Train ``model`` in place on ``settings.steps`` batches of fresh examples."""
    hidden = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    muon = Muon(hidden, lr=settings.muon_lr)
    adamw = torch.optim.AdamW(others, lr=settings.adamw_lr, betas=(0.9, 0.95), weight_decay=0.0)
    bases: tuple[tuple[torch.optim.Optimizer, float], ...] = ((muon, settings.muon_lr), (adamw, settings.adamw_lr))
    model.train()
    for step in range(settings.steps):
        share = learning_rate_share(step, settings)
        for optimizer, lr in bases:
            optimizer.param_groups[0]["lr"] = lr * share
        loss = _accumulate_gradients(model, list(islice(examples, settings.batch)), settings)
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        for optimizer, _ in bases:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if progress is not None:
            progress(step + 1, settings.steps, loss)


def _accumulate_gradients(model: Qwen3ForCausalLM, batch: list[Example], settings: SftSettings) -> float:
    """Gradient of the weighted token mean over the whole batch; short and long examples in separate micro-batches."""
    batch.sort(key=lambda example: len(example.token_ids))
    total_weight = sum(float(_weights(example, settings).sum()) for example in batch)
    size = -(-len(batch) // settings.micro_batches)
    loss_sum = 0.0
    for start in range(0, len(batch), size):
        loss = _loss_sum(model, batch[start : start + size], settings) / total_weight
        loss.backward()  # type: ignore[no-untyped-call]
        loss_sum += loss.item()
    return loss_sum


def _loss_sum(model: Qwen3ForCausalLM, examples: list[Example], settings: SftSettings) -> Tensor:
    """Sum over tokens of weight times -log p(token | before). Right padding needs no mask: attention is causal."""
    length = max(len(example.token_ids) for example in examples)
    ids_BT = torch.zeros(len(examples), length, dtype=torch.long)
    weights_BT = torch.zeros(len(examples), length)
    for row, example in enumerate(examples):
        ids_BT[row, : len(example.token_ids)] = torch.from_numpy(example.token_ids)
        weights_BT[row, 1 : len(example.token_ids)] = torch.from_numpy(_weights(example, settings))
    hidden_BTD = model.model(input_ids=ids_BT[:, :-1], use_cache=False).last_hidden_state
    is_used = weights_BT[:, 1:] > 0
    logits_NV = model.lm_head(hidden_BTD[is_used])
    losses_N = cross_entropy(logits_NV, ids_BT[:, 1:][is_used], reduction="none")
    return (losses_N * weights_BT[:, 1:][is_used]).sum()


def _weights(example: Example, settings: SftSettings) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Weights of tokens 1 .. T-1 (the first has nothing before it), drawn by the example's own content."""
    is_action = example.is_action[1:]
    rng = np.random.default_rng(example.token_ids.astype(np.uint32))
    is_drawn = rng.random(len(is_action)) < settings.context_share
    context = np.where(is_drawn, settings.context_weight / settings.context_share, 0.0)
    return (np.where(is_action, 1.0, context) * example.is_taught[1:]).astype(np.float32)
