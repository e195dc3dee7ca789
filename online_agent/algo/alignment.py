"""From what a network returns at each position to what is known about each token.

A causal network's output at position t is computed from tokens 0..t: it is the state *after* token t, that is the
state before token t + 1. The one shift of the project lives here; everything downstream is indexed by token.
"""

from __future__ import annotations

import torch
from torch import Tensor


def values_before_tokens(outputs_BT: Tensor) -> Tensor:
    """(B, T) value of the state before each token: the critic's output one position earlier.

    Position 0 gets 0; it has no state before it and is never an action. For the first token of a turn this is the
    output at the last observation token (SAO eq. 4). Differentiable; padding on either side changes nothing.
    """
    return torch.nn.functional.pad(outputs_BT[:, :-1], (1, 0))


def token_log_probs(logits_BTV: Tensor, token_ids_BT: Tensor, temperature_B: Tensor) -> Tensor:
    """(B, T) log pi(token_t | tokens before) under softmax(logits / temperature); position 0 gets 0.

    ``temperature_B`` (B,) is the sampling temperature stored with each episode: ratios against the engine's
    log-probs are 1 only when both sides divide by it. Differentiable in the logits; fp32 or fp64 result.
    Raises ValueError for a temperature of 0 or below: greedy tokens have no log-prob to learn from.
    """
    if bool((temperature_B <= 0).any()):
        raise ValueError(f"temperature must be above 0 to train, got {float(temperature_B.min())}")
    ahead_BTV = logits_BTV[:, :-1]
    if ahead_BTV.dtype not in (torch.float32, torch.float64):
        ahead_BTV = ahead_BTV.float()
    ahead_BTV = ahead_BTV / temperature_B.to(ahead_BTV)[:, None, None]
    chosen_BT = ahead_BTV.gather(-1, token_ids_BT[:, 1:, None].long()).squeeze(-1)
    return torch.nn.functional.pad(chosen_BT - ahead_BTV.logsumexp(-1), (1, 0))
