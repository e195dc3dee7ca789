"""The stand-in for page-locked memory: without it, each of these calls raises on a machine without an accelerator."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from online_agent.serving.launcher import CPU_STUB_DIR


@pytest.fixture
def unpinned(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(CPU_STUB_DIR))
    yield importlib.import_module("unpinned")
    sys.modules.pop("unpinned", None)


@pytest.fixture
def patched(unpinned: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that pins, imported as the engine process would import one of SGLang's."""
    (tmp_path / "pinning.py").write_text("import torch\nNUMBERS = torch.arange(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(unpinned, "PATCHED_MODULES", ("pinning",))
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.pin_memory)
    monkeypatch.setattr(sys, "meta_path", [unpinned.UnpinnedFinder(), *sys.meta_path])
    yield importlib.import_module("pinning")
    sys.modules.pop("pinning", None)


def test_what_would_be_pinned_is_an_ordinary_tensor_with_its_values(patched: ModuleType) -> None:
    assert patched.torch.tensor([1, 2], dtype=torch.int32, pin_memory=True).tolist() == [1, 2]
    assert patched.torch.zeros(2, pin_memory=True).tolist() == [0.0, 0.0]
    assert patched.NUMBERS.pin_memory() is patched.NUMBERS


def test_everything_else_of_torch_is_torch(patched: ModuleType) -> None:
    assert patched.torch.Tensor is torch.Tensor
    assert patched.torch.nn is torch.nn


@pytest.mark.skipif(torch.cuda.is_available(), reason="page-locked memory exists here")
def test_no_other_module_is_touched(patched: ModuleType, unpinned: ModuleType) -> None:
    assert unpinned.UnpinnedFinder().find_spec("json") is None
    with pytest.raises(RuntimeError, match="accelerator"):
        torch.zeros(1, pin_memory=True)
