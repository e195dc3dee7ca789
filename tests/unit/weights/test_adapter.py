"""Versions that hold an adapter: what they are made of, what they belong to, and what keeps their base on disk."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from online_agent.errors import CorruptVersion, ForeignVersion
from online_agent.types import VersionOrigin
from online_agent.weights import VersionDir, WeightStore, check_fits
from online_agent.weights.adapter import (
    Base,
    Probe,
    adapter_name,
    base_serving_dir,
    read_probe,
    version_of,
    write_base,
    write_probe,
)
from tests.unit.weights.conftest import write_learner, write_model

WEIGHT = "model.layers.0.self_attn.o_proj.weight"
A = "base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight"
B = A.replace("lora_A", "lora_B")
PAIR = {A: np.ones((2, 3), np.float32), B: np.zeros((5, 2), np.float32)}


@pytest.fixture
def adapted(tmp_path: Path) -> WeightStore:
    """A store whose version 0 has one weight (5, 3)."""
    store = WeightStore(tmp_path / "weights")
    store.import_seed(write_model(tmp_path / "base", {WEIGHT: np.ones((5, 3), np.float32)}))
    return store


def publish_adapter(
    store: WeightStore,
    version: int,
    tensors: dict[str, np.ndarray] | None = None,
    *,
    base: Base | None = None,
    alpha: int = 4,
    without: str = "",
) -> VersionDir:
    with store.writer(version, parent=version - 1, step=version) as directory:
        serving = write_model(directory / "serving")
        (serving / "model.safetensors").unlink()
        save_file(PAIR if tensors is None else tensors, serving / "adapter_model.safetensors")
        (serving / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": alpha}))
        write_base(serving, base or Base(0, store.open(0).manifest.content_hash))
        write_probe(serving, Probe((1, 2, 3), (-1.0, -2.0)))
        if without:
            (serving / without).unlink()
        write_learner(directory / "learner")
    return store.open(version)


def test_its_manifest_names_the_base_it_belongs_to(adapted: WeightStore) -> None:
    version = publish_adapter(adapted, 1)
    assert version.manifest.base == Base(0, adapted.open(0).manifest.content_hash)
    assert adapted.open(0).manifest.base is None
    assert base_serving_dir(version.serving_dir) == adapted.open(0).serving_dir
    assert base_serving_dir(adapted.open(0).serving_dir) == adapted.open(0).serving_dir


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "base.json", "probe.json"])
def test_one_without_any_of_its_parts_is_not_published(adapted: WeightStore, name: str) -> None:
    with pytest.raises(CorruptVersion, match=f"serving/{name} is missing"):
        publish_adapter(adapted, 1, without=name)
    assert adapted.versions() == [0]


def test_the_content_hash_covers_the_factors_and_their_scale(adapted: WeightStore) -> None:
    first, same = publish_adapter(adapted, 1).manifest, publish_adapter(adapted, 2).manifest
    louder = publish_adapter(adapted, 3, alpha=8).manifest
    moved = publish_adapter(adapted, 4, {**PAIR, B: np.ones((5, 2), np.float32)}).manifest
    assert first.content_hash == same.content_hash
    assert len({first.content_hash, louder.content_hash, moved.content_hash}) == 3


def test_a_copy_under_a_new_number_has_its_content_and_base(adapted: WeightStore) -> None:
    old = publish_adapter(adapted, 1).manifest
    copy = adapted.copy_as(1, 2)
    assert (copy.manifest.content_hash, copy.manifest.base) == (old.content_hash, old.base)
    assert (copy.manifest.version, copy.manifest.origin) == (2, VersionOrigin.ROLLBACK)
    check_fits(copy, old)


def test_it_fits_its_base_and_other_adapters_of_it(adapted: WeightStore) -> None:
    version = publish_adapter(adapted, 1)
    check_fits(version, adapted.open(0).manifest)
    check_fits(publish_adapter(adapted, 2), version.manifest)


def test_its_base_may_serve_again_in_its_place_and_other_weights_may_not(adapted: WeightStore, tmp_path: Path) -> None:
    served = publish_adapter(adapted, 1).manifest
    check_fits(adapted.copy_as(0, 2), served)
    other = adapted.import_seed(write_model(tmp_path / "other", {WEIGHT: np.zeros((5, 3), np.float32)}), 3)
    with pytest.raises(ForeignVersion, match=r"version 3 belongs to .* of version 3 .* holds those of version 0"):
        check_fits(other, served)


def test_an_adapter_of_another_base_is_refused(adapted: WeightStore) -> None:
    foreign = publish_adapter(adapted, 1, base=Base(0, "f" * 64))
    with pytest.raises(ForeignVersion, match=r"version 1 belongs to the weights of version 0 \(ffffffffffff\)"):
        check_fits(foreign, adapted.open(0).manifest)


@pytest.mark.parametrize(
    ("tensors", "error", "reason"),
    [
        ({A: PAIR[A]}, CorruptVersion, "lora_A.weight without its other factor"),
        ({**PAIR, "other.weight": PAIR[A]}, CorruptVersion, "other.weight, which is no part of an adapter"),
        ({**PAIR, A: np.ones((3, 3), np.float32)}, ForeignVersion, r"is F32 \[3, 3\], wanted F32 \[2, 3\]"),
        ({**PAIR, B: np.ones((4, 2), np.float32)}, ForeignVersion, r"is F32 \[4, 2\], wanted F32 \[5, 2\]"),
        ({**PAIR, B: np.ones((5, 2), np.float16)}, ForeignVersion, r"is F16 \[5, 2\], wanted F32"),
        ({k.replace("o_proj", "q_proj"): v for k, v in PAIR.items()}, ForeignVersion, "q_proj.weight, which its base"),
        ({**PAIR, A: np.full((2, 3), np.nan, np.float32)}, CorruptVersion, "lora_A.weight is not finite at element 0"),
    ],
)
def test_factors_that_do_not_fit_the_base_are_named(
    adapted: WeightStore, tensors: dict[str, np.ndarray], error: type[Exception], reason: str
) -> None:
    version = publish_adapter(adapted, 1, tensors)
    with pytest.raises(error, match=reason):
        check_fits(version, adapted.open(0).manifest)


def test_pruning_keeps_the_base_of_every_adapter_that_stays(adapted: WeightStore) -> None:
    for version in (1, 2, 3):
        publish_adapter(adapted, version)
    assert adapted.prune({3}) == [1, 2]
    assert adapted.versions() == [0, 3]


def test_a_base_that_no_adapter_needs_any_more_goes(adapted: WeightStore, tmp_path: Path) -> None:
    publish_adapter(adapted, 1)
    adapted.import_seed(write_model(tmp_path / "other"), 2)
    assert adapted.prune({2}) == [0, 1]


@pytest.mark.parametrize(
    "content", ["", "[]", '{"token_ids": [1], "logprobs": []}', '{"token_ids": [1, 2, 3], "logprobs": [0]}']
)
def test_a_probe_that_cannot_be_judged_is_corrupt(tmp_path: Path, content: str) -> None:
    (tmp_path / "probe.json").write_text(content)
    with pytest.raises(CorruptVersion, match=r"probe\.json"):
        read_probe(tmp_path)


def test_adapter_names_bear_the_version() -> None:
    assert adapter_name(12) == "v000012"
    assert [version_of(name) for name in ("v000012", "v1234567", "v12", "base", "v00001x")] == [
        12,
        1234567,
        None,
        None,
        None,
    ]


def test_the_base_of_a_version_is_opened_whole_or_not_at_all(adapted: WeightStore) -> None:
    version = publish_adapter(adapted, 1)
    assert adapted.open_base(version).manifest == adapted.open(0).manifest
    assert adapted.open_base(adapted.open(0)).manifest.version == 0
    with pytest.raises(ForeignVersion, match="version 2 belongs to the weights of version 0"):
        adapted.open_base(publish_adapter(adapted, 2, base=Base(0, "f" * 64)))
    file = adapted.open(0).serving_dir / "model.safetensors"
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptVersion, match=r"model\.safetensors has"):
        adapted.open_base(version)
