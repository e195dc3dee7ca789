"""Actor and critic: any Hugging Face causal language model, and a copy of its backbone with a scalar head.

Axes: B rows, T positions, H width, V vocabulary, N action tokens of the micro-batch laid end to end.
Both networks are evaluated only at the N positions that predict an action token: the state before that token.
Rows are padded on the right and no attention mask is passed: under causal attention padding cannot be seen by what
stands before it. ``num_shared`` tokens that all rows begin with (the system prompt and its tools) are worked through
once for the whole micro-batch; see ``shared_prefix``. The actor's mixtures of experts can be told what to use; see
``routing``. The critic's choose for themselves.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from online_agent.errors import ConfigError, CorruptVersion
from online_agent.learner.last_layer import gather_in_last_layer, hidden_rows, is_known_decoder
from online_agent.learner.packing import feeds_packed, hidden_of_packed
from online_agent.learner.routing import logits_and_choice, prepare_mixtures, replayed
from online_agent.learner.shared_prefix import hidden_after_prefix
from online_agent.weights.adapter import base_serving_dir

# Rounding of two evaluation orders of the same network; an unknown extra step (soft-capped logits, a residual
# multiplier) shows far above it.
_SELF_CHECK_TOLERANCE = 1e-3


def load_causal_lm(model_dir: Path) -> Any:
    """The model of a Hugging Face directory in fp32; of a version with an adapter, its base.

    Files on this disk only, safetensors only, no code from it. Raises ConfigError when they do not load.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(
            base_serving_dir(model_dir),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="sdpa",
        )
    except (OSError, ValueError, KeyError, CorruptVersion) as error:
        raise ConfigError(f"cannot load a causal language model from {model_dir}: {error}") from error
    model.config.use_cache = False
    return model


class Actor(nn.Module):
    """The policy. ``causal_lm`` keeps its own parameter names, so its weights go to the engine unchanged."""

    def __init__(self, causal_lm: Any) -> None:
        super().__init__()
        self.causal_lm = causal_lm
        self.routing_shape = prepare_mixtures(causal_lm)
        gather_in_last_layer(causal_lm.base_model)
        _check_forward(self)

    def forward(
        self,
        token_ids_BT: Tensor,
        positions_N: Tensor,
        targets_N: Tensor,
        temperature_N: Tensor,
        num_shared: int = 0,
        experts_BTLK: Tensor | None = None,
    ) -> Tensor:
        """(N,) fp32 log pi(target | tokens before) under softmax(logits / temperature).

        ``positions_N`` index B*T flattened, ``temperature_N`` is each token's own sampling temperature.
        ``experts_BTLK`` are the experts that mixtures use; None leaves the choice to their routers.
        """
        logits_NV = _at_least_fp32(self.logits_at(token_ids_BT, positions_N, num_shared, experts_BTLK))
        return -F.cross_entropy(logits_NV / temperature_N[:, None], targets_N, reduction="none")

    def logits_at(
        self, token_ids_BT: Tensor, positions_N: Tensor, num_shared: int = 0, experts_BTLK: Tensor | None = None
    ) -> Tensor:
        """(N, V) logits at the flattened positions."""
        hidden_NH = hidden_at(self.causal_lm.base_model, token_ids_BT, positions_N, num_shared, experts_BTLK)
        logits_NV: Tensor = self.causal_lm.get_output_embeddings()(hidden_NH)
        return logits_NV


class Critic(nn.Module):
    """The value of the state before each action token: a copy of the actor's first backbone and a linear head.

    The head starts as weight 0 and bias ``bias_init``: every first value equals the bias. Backbone parameters whose
    name matches ``freeze_pattern`` get no gradient; None freezes the embeddings alone.
    """

    def __init__(self, causal_lm: Any, *, bias_init: float, freeze_pattern: str | None) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(causal_lm.base_model)
        gather_in_last_layer(self.backbone)
        self.bias_init = bias_init
        self.head = nn.Linear(causal_lm.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.constant_(self.head.bias, bias_init)
        self.num_frozen = 0 if freeze_pattern is None else freeze(self.backbone, freeze_pattern)
        # Only MLPs, norms and head learn; a frozen embedding also spares the backward pass below the first layer.
        self.backbone.get_input_embeddings().requires_grad_(False)

    def initial_parameters(self, actor: Mapping[str, Tensor], backbone_prefix: str) -> dict[str, Tensor]:
        """What a new critic of this actor starts from; ``backbone_prefix`` is the backbone's in the actor's names."""
        fresh = {"head.weight": torch.zeros(1, self.head.in_features), "head.bias": torch.tensor([self.bias_init])}
        for name, _ in self.backbone.named_parameters():
            fresh[f"backbone.{name}"] = actor[backbone_prefix + name]
        return fresh

    def forward(self, token_ids_BT: Tensor, positions_N: Tensor, num_shared: int = 0) -> Tensor:
        """(N,) fp32 values at the flattened positions."""
        values_N1: Tensor = self.head(hidden_at(self.backbone, token_ids_BT, positions_N, num_shared))
        return _at_least_fp32(values_N1.squeeze(-1))


def hidden_at(
    backbone: Any,
    token_ids_BT: Tensor,
    positions_N: Tensor,
    num_shared: int = 0,
    experts_BTLK: Tensor | None = None,
) -> Tensor:
    """(N, H) the backbone's last hidden states at the flattened positions, all of them at or after ``num_shared``."""
    if feeds_packed(backbone):
        return hidden_of_packed(backbone, token_ids_BT, positions_N, experts_BTLK)
    if num_shared and is_known_decoder(backbone):
        return hidden_after_prefix(backbone, token_ids_BT, positions_N, num_shared, experts_BTLK)
    experts_SLK = None if experts_BTLK is None else experts_BTLK.flatten(0, 1)
    if is_known_decoder(backbone):
        return hidden_rows(backbone, positions_N, experts_SLK, input_ids=token_ids_BT, use_cache=False)
    with replayed(backbone, experts_SLK):
        hidden: Tensor = backbone(input_ids=token_ids_BT, use_cache=False).last_hidden_state
    return hidden.reshape(-1, hidden.shape[-1])[positions_N]


def _at_least_fp32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def freeze(module: nn.Module, pattern: str) -> int:
    """Parameters whose name matches get no gradient; how many did. Raises ConfigError when none does."""
    matched = [parameter for name, parameter in module.named_parameters() if re.search(pattern, name)]
    if not matched:
        names = ", ".join(name for name, _ in module.named_parameters())[:200]
        raise ConfigError(f"freeze pattern {pattern!r} matches no parameter of the critic; it has {names}...")
    for parameter in matched:
        parameter.requires_grad_(False)
    return len(matched)


@torch.no_grad()
def _check_forward(actor: Actor) -> None:
    """The logits taken at chosen positions are the model's own. Raises ConfigError for a model that adds to them."""
    vocab_size = actor.causal_lm.config.get_text_config().vocab_size
    token_ids_BT = torch.arange(12).reshape(2, 6) % vocab_size
    positions_N = torch.tensor([1, 4, 8, 11])
    # A router near a tie may choose otherwise in another order of evaluation: its first choice is held.
    own_BTV, experts_BTLK = logits_and_choice(actor.causal_lm, token_ids_BT)
    own_NV = own_BTV.reshape(-1, own_BTV.shape[-1])[positions_N]
    ours_NV = actor.logits_at(token_ids_BT, positions_N, 0, experts_BTLK)
    of_first = None if experts_BTLK is None else experts_BTLK[:1].expand(2, -1, -1, -1)
    shared_NV = actor.logits_at(token_ids_BT[:1].expand(2, -1), positions_N, 1, of_first)
    gap = float(torch.maximum((own_NV - ours_NV).abs().max(), (own_NV[:2] - shared_NV[:2]).abs().max()))
    if not gap <= _SELF_CHECK_TOLERANCE:
        kind = type(actor.causal_lm).__name__
        raise ConfigError(f"{kind} changes its logits after the output embedding (off by {gap:.3g}): not supported")
