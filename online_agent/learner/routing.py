"""Routing replay (R3, arXiv 2510.11370): the actor's mixtures use the experts that the engine chose for each token.

Engine and trainer round differently, so near a tie their routers choose different experts and the same weights give
another log-prob. Replay fixes the *set*; what each chosen expert counts comes from the present router, so gradients
reach it.

Axes: S tokens fed, laid end to end, L decoder layers (dense ones included), K experts per token, E experts, H width.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from online_agent.errors import ConfigError
from online_agent.types import TrainingEpisode

_BLOCK_KINDS = ("Qwen3MoeSparseMoeBlock",)
"""Blocks made of a ``gate`` that returns (logits, weights, experts) and of ``experts`` that take the last two."""

_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class RoutingShape:
    """What a row of recorded experts must look like. ``mixture_layers`` are those of ``num_layers`` that route."""

    num_layers: int
    num_experts: int
    experts_per_token: int
    mixture_layers: tuple[int, ...]


def prepare_mixtures(causal_lm: Any) -> RoutingShape | None:
    """The model's mixtures can be told which experts to use; None for a model without any.

    Raises ConfigError for a mixture of a kind that is not known.
    """
    config = causal_lm.config.get_text_config()
    blocks = _blocks(causal_lm.base_model)
    for block in blocks.values():
        block.replay_SK = None
        block.forward = types.MethodType(_forward, block)
    if blocks:
        return RoutingShape(
            num_layers=len(causal_lm.base_model.layers),
            num_experts=int(config.num_experts),
            experts_per_token=int(config.num_experts_per_tok),
            mixture_layers=tuple(blocks),
        )
    if any(getattr(config, name, None) for name in _EXPERT_COUNTS):
        raise ConfigError(f"{type(causal_lm).__name__} is a mixture of experts of a kind that cannot be trained here")
    return None


@contextmanager
def replayed(backbone: Any, experts_SLK: Tensor | None, kept_N: Tensor | None = None) -> Iterator[None]:
    """Inside, the prepared mixtures use ``experts_SLK``, one row per token of the input; their own choice when None.

    ``kept_N``: the last layer works only at these of the S tokens.
    """
    if experts_SLK is None:
        yield
        return
    blocks = _blocks(backbone)
    last = len(backbone.layers) - 1
    try:
        for layer, block in blocks.items():
            chosen_SK = experts_SLK[:, layer].long()
            block.replay_SK = chosen_SK if layer != last or kept_N is None else chosen_SK[kept_N]
        yield
    finally:
        for block in blocks.values():
            block.replay_SK = None


@torch.no_grad()
def logits_and_choice(causal_lm: Any, token_ids_BT: Tensor) -> tuple[Tensor, Tensor | None]:
    """(B, T, V) the model's own logits and (B, T, L, K) the experts that its routers choose, 0 in dense layers.

    None in place of the experts for a model without mixtures.
    """
    chosen: dict[int, Tensor] = {}
    hooks = [
        block.gate.register_forward_hook(lambda module, args, out, layer=layer: chosen.__setitem__(layer, out[2]))
        for layer, block in _blocks(causal_lm.base_model).items()
    ]
    try:
        logits_BTV = causal_lm(input_ids=token_ids_BT, use_cache=False).logits
    finally:
        for hook in hooks:
            hook.remove()
    if not chosen:
        return logits_BTV, None
    nowhere_SK = torch.zeros_like(next(iter(chosen.values())))
    choice_SLK = torch.stack([chosen.get(i, nowhere_SK) for i in range(len(causal_lm.base_model.layers))], 1)
    return logits_BTV, choice_SLK.reshape(*token_ids_BT.shape, *choice_SLK.shape[1:])


def routing_weights(logits_SE: Tensor, experts_SK: Tensor, *, is_normalised: bool) -> Tensor:
    """(S, K) what each chosen expert counts: the softmax over the chosen logits alone (``norm_topk_prob``), or their
    shares of the softmax over all; fp32 or wider. With the router's own choice it is what the router gives.
    """
    logits_SE = logits_SE.to(torch.promote_types(logits_SE.dtype, torch.float32))
    if is_normalised:
        return logits_SE.gather(-1, experts_SK).softmax(-1)
    return logits_SE.softmax(-1).gather(-1, experts_SK)


def choose_routing(
    episodes: Sequence[TrainingEpisode], shape: RoutingShape | None, *, is_replayed: bool
) -> tuple[list[TrainingEpisode], str | None]:
    """The episodes with recorded experts where they are to be replayed and without elsewhere, and why they cannot be.

    A model without mixtures has nothing to replay: its episodes are trained as they are.
    """
    if shape is None or not is_replayed:
        return [replace(episode, routed_experts=None) for episode in episodes], None
    for episode in episodes:
        fault = routing_fault(episode, shape)
        if fault:
            return list(episodes), f"episode {episode.id}: {fault}"
    return list(episodes), None


def routing_fault(episode: TrainingEpisode, shape: RoutingShape) -> str | None:
    """Why the episode's routing cannot be replayed in a model of this shape; None when it can."""
    experts_TLK = episode.routed_experts
    if experts_TLK is None:
        return "the engine's choice of experts is not recorded for every token"
    wanted = (len(episode.token_ids), shape.num_layers, shape.experts_per_token)
    if experts_TLK.shape != wanted:
        return f"recorded experts have shape {experts_TLK.shape}, the model needs {wanted}"
    actions = np.flatnonzero(episode.action_mask)
    fed = experts_TLK[: int(actions[-1]) if len(actions) else 0][:, shape.mixture_layers]
    if fed.size and int(fed.max()) >= shape.num_experts:
        return f"expert {int(fed.max())} is recorded, the model has {shape.num_experts}"
    if shape.experts_per_token > 1 and (np.diff(np.sort(fed, axis=-1).astype(np.int16), axis=-1) == 0).any():
        return "an expert is recorded twice for one token"
    return None


def rows_of_experts(
    episodes: Sequence[TrainingEpisode], lengths: Sequence[int], num_tokens: int
) -> npt.NDArray[np.uint8] | None:
    """(B, ``num_tokens``, L, K) the experts of the fed tokens, 0 in the padding; None unless every episode has them."""
    recorded = [episode.routed_experts for episode in episodes]
    rows = [experts for experts in recorded if experts is not None]
    if not rows or len(rows) != len(recorded):
        return None
    experts_BTLK = np.zeros((len(rows), num_tokens, *rows[0].shape[1:]), np.uint8)
    for row, experts_TLK, length in zip(experts_BTLK, rows, lengths, strict=True):
        row[:length] = experts_TLK[:length]
    return experts_BTLK


def _blocks(backbone: Any) -> dict[int, Any]:
    """Layer → its mixture, for layers that have one."""
    layers = enumerate(getattr(backbone, "layers", ()))
    return {i: layer.mlp for i, layer in layers if type(getattr(layer, "mlp", None)).__name__ in _BLOCK_KINDS}


def _forward(self: Any, hidden_states: Tensor) -> Tensor:
    hidden_SH = hidden_states.reshape(-1, hidden_states.shape[-1])
    if not len(hidden_SH):
        return hidden_states
    logits_SE, weights_SK, experts_SK = self.gate(hidden_SH)
    if self.replay_SK is not None:
        experts_SK = self.replay_SK
        weights_SK = routing_weights(logits_SE, experts_SK, is_normalised=self.gate.norm_topk_prob).to(logits_SE.dtype)
    mixed_SH: Tensor = self.experts(hidden_SH, experts_SK, weights_SK)
    return mixed_SH.reshape(hidden_states.shape)
