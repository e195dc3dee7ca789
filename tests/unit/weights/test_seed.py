"""A Hugging Face directory becomes version 0, or is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from online_agent.errors import CorruptVersion, WeightsError
from online_agent.types import VersionOrigin
from online_agent.weights import WeightStore
from tests.unit.weights.conftest import TENSORS, write_model


@pytest.fixture
def empty(tmp_path: Path) -> WeightStore:
    return WeightStore(tmp_path / "empty")


def test_the_seed_is_version_0_with_everything_the_engine_needs(empty: WeightStore, model_dir: Path) -> None:
    (model_dir / "chat_template.jinja").write_text("{{ messages }}")
    (model_dir / "modeling_custom.py").write_text("raise SystemExit")
    (model_dir / "pytorch_model.bin").write_bytes(b"pickle")
    version = empty.import_seed(model_dir)
    assert (version.manifest.version, version.manifest.parent) == (0, None)
    assert version.manifest.origin is VersionOrigin.SEED
    assert sorted(version.manifest.files) == [
        "serving/chat_template.jinja",
        "serving/config.json",
        "serving/model.safetensors",
        "serving/tokenizer.json",
    ]


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_directory_that_lacks_a_file_is_refused_by_its_name(empty: WeightStore, model_dir: Path, name: str) -> None:
    (model_dir / name).unlink()
    with pytest.raises(WeightsError, match=f"has no {name}"):
        empty.import_seed(model_dir)
    assert empty.versions() == []


def test_pickled_weights_are_refused(empty: WeightStore, model_dir: Path) -> None:
    (model_dir / "model.safetensors").rename(model_dir / "pytorch_model.bin")
    with pytest.raises(WeightsError, match=r"pickled weights \(pytorch_model\.bin\)"):
        empty.import_seed(model_dir)


def test_a_directory_without_weights_or_that_does_not_exist_is_refused(empty: WeightStore, model_dir: Path) -> None:
    (model_dir / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="no safetensors file"):
        empty.import_seed(model_dir)
    with pytest.raises(WeightsError, match="is not a directory"):
        empty.import_seed(model_dir / "nowhere")


def test_every_shard_of_the_index_must_be_there(empty: WeightStore, model_dir: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (model_dir / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=r"has no model-2\.safetensors"):
        empty.import_seed(model_dir)
    save_file({"b": np.ones(1, np.float32)}, model_dir / "model-2.safetensors")
    assert set(empty.import_seed(model_dir).manifest.tensors) == {*TENSORS, "b"}


def test_an_index_cannot_point_outside_the_directory(empty: WeightStore, model_dir: Path) -> None:
    index = {"weight_map": {"a": "../secret.safetensors"}}
    (model_dir / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match="outside the directory"):
        empty.import_seed(model_dir)


def test_a_seed_with_a_value_that_is_not_finite_or_a_cut_file_is_refused(empty: WeightStore, tmp_path: Path) -> None:
    bad = write_model(tmp_path / "bad", {"w": np.array([np.inf], np.float32)})
    with pytest.raises(CorruptVersion, match="w is not finite"):
        empty.import_seed(bad)
    (bad / "model.safetensors").write_bytes(b"cut")
    with pytest.raises(CorruptVersion, match="no readable safetensors"):
        empty.import_seed(bad)
    assert empty.versions() == []
