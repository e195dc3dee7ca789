"""A Qwen3 mixture of experts grown from a dense Qwen3 directory (sparse upcycling, arXiv 2212.05055).

Every expert starts as the dense MLP plus a little noise of its own and the router is random. The weights of the chosen
experts sum to one (``norm_topk_prob``), so the mixture computes nearly what the dense network did.

The output embedding becomes a tensor of its own: SGLang 0.5.23 gives this architecture a head of its own even where
the configuration ties it, and a checkpoint without one would be served with a head that was never loaded.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from online_agent.errors import ConfigError

Weights = dict[str, npt.NDArray[np.float32]]

MODEL_FILE = "model.safetensors"
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
_MAX_EXPERTS = 256
"""What one byte per choice can name in a recorded episode."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """``noise`` is added to each expert, in deviations of the dense matrix; ``router_std`` that of the router."""

    num_experts: int = 8
    experts_per_token: int = 2
    noise: float = 0.2
    router_std: float = 0.02
    seed: int = 0

    def check(self) -> None:
        """Raise ConfigError naming the value that makes no mixture."""
        if not 2 <= self.num_experts <= _MAX_EXPERTS:
            raise ConfigError(f"{self.num_experts} experts: between 2 and {_MAX_EXPERTS} are possible")
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ConfigError(f"{self.experts_per_token} experts per token out of {self.num_experts}")
        if self.noise < 0 or self.router_std <= 0:
            raise ConfigError(f"noise {self.noise} must not be negative, router_std {self.router_std} must be positive")


def upcycle(dense_dir: Path, out_dir: Path, mixture: Mixture | None = None) -> None:
    """``out_dir`` is a complete Qwen3-MoE directory; equal arguments give equal bytes on any machine.

    Raises ConfigError when ``dense_dir`` holds no dense Qwen3.
    """
    mixture = mixture or Mixture()
    mixture.check()
    config = _read_config(dense_dir)
    weights = _read_weights(dense_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        if (dense_dir / file).is_file():
            shutil.copyfile(dense_dir / file, out_dir / file)
    (out_dir / "config.json").write_text(json.dumps(mixture_config(config, mixture), indent=2, sort_keys=True) + "\n")
    save_file(
        mixture_weights(weights, int(config["num_hidden_layers"]), mixture), out_dir / MODEL_FILE, {"format": "pt"}
    )


def mixture_config(dense: Mapping[str, Any], mixture: Mixture) -> dict[str, Any]:
    """The Qwen3-MoE configuration whose every layer is a mixture of MLPs of the dense size."""
    kept = {key: value for key, value in dense.items() if key not in ("layer_types", "max_window_layers")}
    return kept | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": mixture.num_experts,
        "num_experts_per_tok": mixture.experts_per_token,
        "moe_intermediate_size": dense["intermediate_size"],
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "tie_word_embeddings": False,
    }


def mixture_weights(dense: Weights, num_layers: int, mixture: Mixture) -> Weights:
    """The tensors of the mixture under the names of a Qwen3-MoE checkpoint: one matrix per expert and projection."""
    rng = np.random.default_rng(mixture.seed)
    weights = {name: tensor for name, tensor in dense.items() if ".mlp." not in name}
    weights.setdefault(_HEAD, dense[_EMBEDDING].copy())
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}.mlp"
        hidden_size = dense[f"{prefix}.gate_proj.weight"].shape[1]
        router = rng.standard_normal((mixture.num_experts, hidden_size)) * mixture.router_std
        weights[f"{prefix}.gate.weight"] = router.astype(np.float32)
        for projection in _PROJECTIONS:
            matrix = dense[f"{prefix}.{projection}.weight"]
            for expert in range(mixture.num_experts):
                own = rng.standard_normal(matrix.shape) * (mixture.noise * float(matrix.std()))
                weights[f"{prefix}.experts.{expert}.{projection}.weight"] = (matrix + own).astype(np.float32)
    return weights


def _read_config(dense_dir: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((dense_dir / "config.json").read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"cannot read the configuration of {dense_dir}: {error}") from error
    if config.get("model_type") != "qwen3":
        raise ConfigError(f"{dense_dir} holds a {config.get('model_type')!r} model: only a dense qwen3 can be upcycled")
    return config


def _read_weights(dense_dir: Path) -> Weights:
    weights: Weights = {}
    try:
        for shard in sorted(dense_dir.glob("*.safetensors")):
            weights.update({name: tensor.astype(np.float32) for name, tensor in load_file(shard).items()})
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot read the weights of {dense_dir}: {error}") from error
    if _EMBEDDING not in weights:
        raise ConfigError(f"{dense_dir} holds no safetensors weights of a qwen3 model")
    return weights
