"""What may be loaded over the served version, and what is refused before the engine sees it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from online_agent.errors import CorruptVersion, ForeignVersion
from online_agent.weights import VersionDir, WeightStore, check_fits
from online_agent.weights.tensors import check_finite, read_header
from tests.unit.weights.conftest import TENSORS, publish, write_learner, write_model

EMBED, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


def _publish(store: WeightStore, tensors: dict[str, np.ndarray], *, is_tied: bool = True) -> VersionDir:
    with store.writer(1, parent=0, step=1) as directory:
        write_model(directory / "serving", tensors, is_tied=is_tied)
        write_learner(directory / "learner")
    return store.open(1)


def test_equal_names_shapes_and_dtypes_fit(store: WeightStore) -> None:
    check_fits(_publish(store, {EMBED: TENSORS[EMBED] + 1, NORM: TENSORS[NORM]}), store.open(0).manifest)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({EMBED: TENSORS[EMBED]}, f"has no tensor {NORM}"),
        ({**TENSORS, "extra": np.ones(1, np.float32)}, "has a tensor extra that the served model does not know"),
        ({**TENSORS, NORM: np.ones(4, np.float32)}, rf"{NORM} is F32 \[4\], but F32 \[3\] is served"),
        ({**TENSORS, NORM: np.ones(3, np.float16)}, rf"{NORM} is F16 \[3\], but F32 \[3\] is served"),
        ({"a": np.ones(1, np.float32)}, "none of its 1 tensors is known"),
    ],
)
def test_the_first_tensor_that_differs_is_named(
    store: WeightStore, tensors: dict[str, np.ndarray], reason: str
) -> None:
    with pytest.raises(ForeignVersion, match=reason):
        check_fits(_publish(store, tensors), store.open(0).manifest)


def test_a_tied_head_may_be_absent_or_present_on_either_side(store: WeightStore, tmp_path: Path) -> None:
    """C14."""
    with_head = {**TENSORS, HEAD: TENSORS[EMBED]}
    sent = _publish(store, with_head)
    served_without_head = store.open(0)
    check_fits(sent, served_without_head.manifest)
    check_fits(served_without_head, sent.manifest)


def test_an_untied_head_must_be_there(tmp_path: Path) -> None:
    store = WeightStore(tmp_path / "weights")
    store.import_seed(write_model(tmp_path / "model", {**TENSORS, HEAD: TENSORS[EMBED]}, is_tied=False))
    with pytest.raises(ForeignVersion, match=f"has no tensor {HEAD}"):
        check_fits(_publish(store, TENSORS, is_tied=False), store.open(0).manifest)


def test_another_architecture_is_foreign_even_with_the_same_tensors(store: WeightStore) -> None:
    with store.writer(1, parent=0, step=1) as directory:
        write_model(directory / "serving")
        config = {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": True}
        (directory / "serving" / "config.json").write_text(json.dumps(config))
        write_learner(directory / "learner")
    with pytest.raises(ForeignVersion, match=r"is LlamaForCausalLM .* but Qwen3ForCausalLM"):
        check_fits(store.open(1), store.open(0).manifest)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_a_value_that_is_not_finite_is_named_with_its_place(
    tmp_path: Path, value: float, dtype: type[np.floating]
) -> None:
    """C32: one NaN in a finished checkpoint."""
    tensor = np.zeros((2, 3), dtype)
    file = tmp_path / "model.safetensors"
    save_file({"fine": np.ones(5, np.float32), "w": tensor, "ids": np.array([-1], np.int64)}, file)
    check_finite(file)
    tensor[1, 1] = value
    save_file({"fine": np.ones(5, np.float32), "w": tensor}, file)
    with pytest.raises(CorruptVersion, match="w is not finite at element 4"):
        check_finite(file)


@pytest.mark.parametrize(
    ("bits", "is_finite"), [(0x3F80, True), (0x7F7F, True), (0xFF7F, True), (0x7F80, False), (0xFFC0, False)]
)
def test_bfloat16_is_judged_by_its_bits(tmp_path: Path, bits: int, is_finite: bool) -> None:
    header = json.dumps({"w": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}).encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bits.to_bytes(2, "little"))
    assert read_header(file)["w"].dtype == "BF16"
    if is_finite:
        check_finite(file)
    else:
        with pytest.raises(CorruptVersion, match="w is not finite at element 0"):
            check_finite(file)


def test_a_version_with_a_nan_is_refused(store: WeightStore) -> None:
    bad = {**TENSORS, NORM: np.array([1, np.nan, 1], np.float32)}
    with pytest.raises(CorruptVersion, match=f"{NORM} is not finite at element 1"):
        check_fits(publish(store, 1, bad), store.open(0).manifest)


@pytest.mark.parametrize("size", [0, 4, 8, 60, 150])
def test_a_truncated_file_is_corrupt_and_nothing_else(tmp_path: Path, size: int) -> None:
    file = tmp_path / "model.safetensors"
    save_file(TENSORS, file)
    assert file.stat().st_size > 150
    os.truncate(file, size)
    with pytest.raises(CorruptVersion, match=r"model\.safetensors is no readable"):
        check_finite(file)
