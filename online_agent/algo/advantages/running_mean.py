"""Reward minus the mean of the rewards before it: the critic-free baseline of SAO's online test (arXiv 2607.07508)."""

from __future__ import annotations

import torch
from torch import Tensor


def running_mean_advantages(
    rewards_E: Tensor, *, window: int, history: Tensor | None = None, prompt_E: Tensor | None = None
) -> Tensor:
    """(E,) A_i = R_i - mean of the last ``window`` rewards before i, itself excluded; the mean of none is 0.

    ``rewards_E`` in stream order; ``history`` holds earlier rewards of the same stream, oldest first.
    With ``prompt_E`` (E,) each prompt is its own stream (SAO: the last 8 of the same prompt) and history is not taken.
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    if prompt_E is None:
        return _over_stream(rewards_E, window, rewards_E.new_zeros(0) if history is None else history)
    if history is not None:
        raise ValueError("history belongs to one stream; it cannot be given together with prompt_E")
    advantages_E = torch.zeros_like(rewards_E)
    for prompt in torch.unique(prompt_E):
        is_prompt_E = prompt_E == prompt
        advantages_E[is_prompt_E] = _over_stream(rewards_E[is_prompt_E], window, rewards_E.new_zeros(0))
    return advantages_E


def _over_stream(rewards_E: Tensor, window: int, history: Tensor) -> Tensor:
    stream = torch.cat([history[-window:], rewards_E]).to(torch.float64)
    sums = torch.cat([stream.new_zeros(1), stream.cumsum(0)])
    end = torch.arange(len(stream) - len(rewards_E), len(stream), device=stream.device)
    start = (end - window).clamp(min=0)
    means = (sums[end] - sums[start]) / (end - start).clamp(min=1)
    return rewards_E - means.to(rewards_E.dtype)
