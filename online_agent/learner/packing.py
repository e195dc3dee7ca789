"""Rows laid end to end for attention kernels that take sequences of any length: nothing that is fed is padding.

``feed_packed`` switches a backbone over; batches keep their rows (B, T), padded on the right. What of a row is fed is
known from the positions that are read: up to the last of them. Position ids begin at 0 in each row, so transformers
keeps rows apart: flash attention by ``cu_seq_lens`` on CUDA, a block-diagonal mask under SDPA on a CPU, where the
whole S x S square is computed and buckets are faster.

A beginning that rows share is fed for each of them: it cannot be one sequence's and all others' too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.utils.import_utils import is_flash_attn_2_available

from online_agent.config.training import LearnerSettings
from online_agent.errors import ConfigError
from online_agent.learner.last_layer import hidden_rows, is_known_decoder


@dataclass(frozen=True, slots=True)
class PackedRows:
    """S tokens of B rows. ``is_fed_BT`` says which of the padded rows they are, ``positions_N`` index S.

    Row b is ``cu_seqlens[b]:cu_seqlens[b + 1]``; ``longest`` is the length of the longest.
    """

    token_ids_S: Tensor
    position_ids_S: Tensor
    positions_N: Tensor
    cu_seqlens: Tensor
    longest: int
    is_fed_BT: Tensor


def feed_packed(causal_lm: Any, settings: LearnerSettings) -> None:
    """From now on ``hidden_at`` packs what it feeds to this model's backbone and to copies of it.

    Raises ConfigError where that cannot be done.
    """
    if not is_known_decoder(causal_lm.base_model):
        raise ConfigError(f"learner.batching = 'packed' does not know the layers of {type(causal_lm).__name__}")
    if settings.device == "cuda":
        if not is_flash_attn_2_available():
            raise ConfigError("learner.batching = 'packed' needs the package flash-attn on CUDA")
        if settings.dtype != "bfloat16":
            raise ConfigError("learner.batching = 'packed' needs learner.dtype = 'bfloat16' on CUDA")
        causal_lm.set_attn_implementation("flash_attention_2")
    causal_lm.base_model.feeds_packed = True


def feeds_packed(backbone: Any) -> bool:
    """Whether ``feed_packed`` switched this backbone, or the one it is a copy of."""
    return getattr(backbone, "feeds_packed", False)


def pack(token_ids_BT: Tensor, positions_N: Tensor) -> PackedRows:
    """Each row up to the last of its ``positions_N`` (flattened B*T); of a row without any, its first token."""
    num_rows, length = token_ids_BT.shape
    row_N, column_N = positions_N // length, positions_N % length
    length_B = torch.ones(num_rows, dtype=torch.int64, device=token_ids_BT.device)
    length_B.scatter_reduce_(0, row_N, column_N + 1, "amax")
    column_BT = torch.arange(length, device=token_ids_BT.device).expand(num_rows, -1)
    is_fed_BT = column_BT < length_B[:, None]
    cu_seqlens = torch.nn.functional.pad(length_B.cumsum(0), (1, 0))
    return PackedRows(
        token_ids_S=token_ids_BT[is_fed_BT],
        position_ids_S=column_BT[is_fed_BT],
        positions_N=cu_seqlens[row_N] + column_N,
        cu_seqlens=cu_seqlens.to(torch.int32),
        longest=int(length_B.max()),
        is_fed_BT=is_fed_BT,
    )


def hidden_of_packed(
    backbone: Any, token_ids_BT: Tensor, positions_N: Tensor, experts_BTLK: Tensor | None = None
) -> Tensor:
    """(N, H) last hidden states at the flattened positions of B*T."""
    packed = pack(token_ids_BT, positions_N)
    return hidden_rows(
        backbone,
        packed.positions_N,
        None if experts_BTLK is None else experts_BTLK[packed.is_fed_BT],
        input_ids=packed.token_ids_S[None],
        position_ids=packed.position_ids_S[None],
        cu_seq_lens_q=packed.cu_seqlens,
        cu_seq_lens_k=packed.cu_seqlens,
        max_length_q=packed.longest,
        max_length_k=packed.longest,
        use_cache=False,
    )
