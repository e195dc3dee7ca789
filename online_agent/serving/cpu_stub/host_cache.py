"""Lets SGLang keep the experts that it chose, on a machine without an accelerator.

With ``--enable-return-routed-experts`` SGLang 0.5.23 keeps the experts of each cached token in host memory, which it
registers with the CUDA runtime for faster copies from the device. Without an accelerator there is nothing to register
with and nothing to copy from: ordinary memory is the same thing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

ALLOCATING_MODULE = "sglang.srt.mem_cache.pool_host.common"


def allocate(dims: tuple[int, ...], dtype: Any, device: str, pin_memory: bool, allocator: Any, **options: Any) -> Any:
    """What SGLang's allocation functions return, in memory of the ordinary kind."""
    return allocator.allocate(dims, dtype=dtype, device=device)


class HostCacheLoader(importlib.abc.Loader):
    """Registers ``allocate`` for the device ``cpu``, which has no function of its own."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._loader.exec_module(module)
        module.__dict__["ALLOC_MEMORY_FUNCS"]["cpu"] = allocate


class HostCacheFinder(importlib.abc.MetaPathFinder):
    """Comes first on ``sys.meta_path`` and answers for ``ALLOCATING_MODULE`` alone."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != ALLOCATING_MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = HostCacheLoader(spec.loader)
        return spec


def install() -> None:
    sys.meta_path.insert(0, HostCacheFinder())
