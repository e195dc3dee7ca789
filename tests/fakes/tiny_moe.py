"""A random Qwen3 mixture of experts small enough to serve in tests."""

from __future__ import annotations

from pathlib import Path

from online_agent.seed_policy.upcycle import Mixture, upcycle
from tests.fakes.tiny_model import write_tiny_model

TINY_MIXTURE = Mixture(num_experts=4, experts_per_token=2, noise=0.5, router_std=0.2)


def write_tiny_moe(model_dir: Path, seed: int = 0, *, scale: float = 0.2, mixture: Mixture = TINY_MIXTURE) -> Path:
    """A complete directory: two layers of four experts, two of them per token, that differ by half a deviation."""
    dense_dir = write_tiny_model(model_dir.with_name(f"{model_dir.name}-dense"), seed, scale=scale)
    upcycle(dense_dir, model_dir, mixture)
    return model_dir
