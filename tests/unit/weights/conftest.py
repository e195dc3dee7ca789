"""A small model directory and a weight store whose version 0 it is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from online_agent.weights import VersionDir, WeightStore

TENSORS = {
    "model.embed_tokens.weight": np.arange(12, dtype=np.float32).reshape(4, 3),
    "model.norm.weight": np.ones(3, np.float32),
}


def write_model(directory: Path, tensors: dict[str, np.ndarray] | None = None, *, is_tied: bool = True) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": is_tied}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "tokenizer.json").write_text("{}")
    save_file(TENSORS if tensors is None else tensors, directory / "model.safetensors")
    return directory


def write_learner(directory: Path) -> None:
    save_file({"w": np.ones(2, np.float32)}, directory / "critic.safetensors")
    (directory / "state.json").write_text('{"step": 1}')


def publish(store: WeightStore, version: int, tensors: dict[str, np.ndarray] | None = None) -> VersionDir:
    with store.writer(version, parent=version - 1, step=version, recipe="sao", config_hash="c") as directory:
        write_model(directory / "serving", tensors)
        write_learner(directory / "learner")
    return store.open(version)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.fixture
def store(tmp_path: Path, model_dir: Path) -> WeightStore:
    weights = WeightStore(tmp_path / "weights")
    weights.import_seed(model_dir)
    return weights
