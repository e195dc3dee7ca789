"""Tokens that all rows of a micro-batch begin with go through the network once.

Episodes of one environment begin with the same system prompt and tools. Under causal attention the states of a common
prefix do not depend on what follows, so its keys and values are computed for one row and read by all rows. Gradients
flow through them as through any other token. The longer the system prompt, the more this saves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from online_agent.learner.last_layer import hidden_rows


def hidden_after_prefix(
    backbone: Any, token_ids_BT: Tensor, positions_N: Tensor, num_shared: int, experts_BTLK: Tensor | None = None
) -> Tensor:
    """(N, H) last hidden states at the flattened positions of B*T; none may lie in the first ``num_shared`` tokens.

    The rows must agree in those tokens, and in the experts they use there: only the first row's are read.
    """
    num_rows, length = token_ids_BT.shape
    cache = DynamicCache(config=backbone.config)
    # Nothing is read from the top of the prefix: its last layer stops at keys and values.
    nowhere = torch.empty(0, dtype=torch.int64, device=token_ids_BT.device)
    of_prefix = of_rest = None
    if experts_BTLK is not None:
        of_prefix, of_rest = experts_BTLK[0, :num_shared], experts_BTLK[:, num_shared:].flatten(0, 1)
    prefix, rest = token_ids_BT[:1, :num_shared], token_ids_BT[:, num_shared:]
    hidden_rows(backbone, nowhere, of_prefix, input_ids=prefix, past_key_values=cache, use_cache=True)
    cache.batch_repeat_interleave(num_rows)
    row_N, column_N = positions_N // length, positions_N % length
    after_N = row_N * (length - num_shared) + column_N - num_shared
    return hidden_rows(backbone, after_N, of_rest, input_ids=rest, past_key_values=cache, use_cache=True)
