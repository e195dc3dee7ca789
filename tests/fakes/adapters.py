"""Adapter versions without a network: factors and probe are made of their number."""

from __future__ import annotations

import json

import numpy as np
from safetensors.numpy import save_file

from online_agent.weights import VersionDir, WeightStore
from online_agent.weights.adapter import MODULE_PREFIX, Base, Probe, write_base, write_probe
from tests.fakes.tiny_model import HEAD_DIM, HIDDEN, NUM_HEADS

MODULE = f"{MODULE_PREFIX}model.layers.0.self_attn.o_proj"


def publish_adapter(weights: WeightStore, version: int) -> VersionDir:
    """An adapter of the tiny model in version 0."""
    base = weights.open(0)
    with weights.writer(version, parent=version - 1, step=version) as directory:
        serving, learner = directory / "serving", directory / "learner"
        for name in ("config.json", "tokenizer.json"):
            (serving / name).write_bytes((base.serving_dir / name).read_bytes())
        factors = {
            f"{MODULE}.lora_A.weight": np.full((2, NUM_HEADS * HEAD_DIM), version, np.float32),
            f"{MODULE}.lora_B.weight": np.ones((HIDDEN, 2), np.float32),
        }
        save_file(factors, serving / "adapter_model.safetensors")
        (serving / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 4}))
        write_base(serving, Base(0, base.manifest.content_hash))
        write_probe(serving, Probe((1, 2, 3), (-1.0 * version, -2.0)))
        save_file({"w": np.ones(2, np.float32)}, learner / "critic.safetensors")
        (learner / "state.json").write_text("{}")
    return weights.open(version)
