"""The last decoder layer works its MLP only at the positions that are read.

Everything after the last attention is done token by token, and only action tokens are read from the top of the
network. Picking their rows right after the last attention changes no number and saves most of one layer's MLP: for
the three-layer seed policy, where three tokens in ten are actions, a sixth of all multiplications.
"""

from __future__ import annotations

import types
from typing import Any

from torch import Tensor

from online_agent.learner.routing import replayed

# Pre-norm decoder layers made of exactly these parts add attention and MLP (or the mixture that stands in its place) to
# the residual one after the other. Other layers run unchanged.
_PRE_NORM_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
_LAYER_KINDS = (
    "LlamaDecoderLayer",
    "MistralDecoderLayer",
    "Qwen2DecoderLayer",
    "Qwen3DecoderLayer",
    "Qwen3MoeDecoderLayer",
)


def gather_in_last_layer(backbone: Any) -> bool:
    """The backbone's last layer can be told which rows to keep; False where its kind is not known."""
    layers = getattr(backbone, "layers", None)
    if not layers:
        return False
    last = layers[-1]
    parts = {name for name, _ in last.named_children()}
    if type(last).__name__ not in _LAYER_KINDS or parts != _PRE_NORM_PARTS:
        return False
    last.rows_to_keep = None
    last.forward = types.MethodType(_forward, last)
    return True


def is_known_decoder(backbone: Any) -> bool:
    """Whether ``gather_in_last_layer`` prepared this backbone."""
    layers = getattr(backbone, "layers", None)
    return layers is not None and len(layers) > 0 and hasattr(layers[-1], "rows_to_keep")


def hidden_rows(backbone: Any, positions_N: Tensor, experts_SLK: Tensor | None = None, **inputs: Any) -> Tensor:
    """(N, H) last hidden states of a prepared backbone at the flattened positions of its input.

    ``experts_SLK``: the experts that its mixtures are to use at each of the S tokens of the input.
    """
    last = backbone.layers[-1]
    last.rows_to_keep = positions_N
    try:
        with replayed(backbone, experts_SLK, positions_N):
            hidden_1NH: Tensor = backbone(**inputs).last_hidden_state
    finally:
        last.rows_to_keep = None
    return hidden_1NH[0]


def _forward(self: Any, hidden_states: Tensor, **kwargs: Any) -> Tensor:
    attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)
    hidden_states = hidden_states + attended
    if self.rows_to_keep is not None:
        hidden_states = hidden_states.reshape(-1, hidden_states.shape[-1])[self.rows_to_keep][None]
    mlp_out: Tensor = self.mlp(self.post_attention_layernorm(hidden_states))
    return hidden_states + mlp_out
