"""A random Qwen3 mixture of experts small enough to serve in tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from online_agent.seed_policy.upcycle import Mixture, upcycle
from tests.fakes.tiny_model import write_tiny_model

TINY_MIXTURE = Mixture(num_experts=4, experts_per_token=2, noise=0.5, router_std=0.2)


def write_tiny_moe(model_dir: Path, seed: int = 0, *, scale: float = 0.2, mixture: Mixture = TINY_MIXTURE) -> Path:
    """A complete directory: two layers of four experts, two of them per token, that differ by half a deviation."""
    dense_dir = write_tiny_model(model_dir.with_name(f"{model_dir.name}-dense"), seed, scale=scale)
    upcycle(dense_dir, model_dir, mixture)
    return model_dir


def tie_routers(model_dir: Path, seed: int = 0, gap: float = 1e-7) -> Path:
    """Every token is a near tie: what tells the experts apart in a router is as small as rounding.

    All rows of a router are one common vector plus ``gap`` times noise, so its logits are large and nearly equal.
    """
    file = model_dir / "model.safetensors"
    weights, rng = load_file(file), np.random.default_rng(seed)
    for name, tensor in weights.items():
        if name.endswith(".mlp.gate.weight"):
            common = rng.standard_normal(tensor.shape[1])
            weights[name] = (common + gap * rng.standard_normal(tensor.shape)).astype(np.float32)
    save_file(weights, file, metadata={"format": "pt"})
    return model_dir
