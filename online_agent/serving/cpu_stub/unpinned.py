"""Lets SGLang's plain-torch LoRA backend run on a machine without an accelerator.

The backend itself (``--lora-backend torch_native``) is made of ordinary torch operations, but SGLang 0.5.23 asks for
page-locked host memory at every step, which torch refuses without an accelerator. Page-locked memory only speeds up
copies to a device: on a CPU the ordinary tensor is the same thing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

PATCHED_MODULES = ("sglang.srt.lora.layers", "sglang.srt.lora.backend.torch_backend")
"""Those that pass ``pin_memory=True`` to a factory of torch."""


class UnpinnedTorch:
    """The module torch, whose factories and tensors pin nothing."""

    def __init__(self, torch: types.ModuleType) -> None:
        self._torch = torch
        self.tensor, self.zeros = _unpinned(torch.tensor), _unpinned(torch.zeros)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)


class UnpinnedLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._loader.exec_module(module)
        torch = module.__dict__["torch"]
        torch.Tensor.pin_memory = _itself
        module.__dict__["torch"] = UnpinnedTorch(torch)


class UnpinnedFinder(importlib.abc.MetaPathFinder):
    """Comes first on ``sys.meta_path`` and answers for ``PATCHED_MODULES`` alone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in PATCHED_MODULES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = UnpinnedLoader(spec.loader)
        return spec


def install() -> None:
    sys.meta_path.insert(0, UnpinnedFinder())


def _unpinned(factory: Callable[..., Any]) -> Callable[..., Any]:
    def make(*args: Any, pin_memory: bool = False, **options: Any) -> Any:
        return factory(*args, **options)

    return make


def _itself(tensor: Any, device: object = None) -> Any:
    return tensor
