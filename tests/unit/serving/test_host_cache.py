"""The one change to SGLang that returning experts needs on a machine without an accelerator."""

from __future__ import annotations

import importlib.util
import types
from pathlib import Path

import pytest

from online_agent.serving.launcher import CPU_STUB_DIR

ALLOCATING = "sglang.srt.mem_cache.pool_host.common"
SOURCE = """
from collections import defaultdict

def register(*args, **options):
    raise AssertionError("Torch not compiled with CUDA enabled")

ALLOC_MEMORY_FUNCS = defaultdict(lambda: register)
"""


class RememberingAllocator:
    def allocate(self, dims: tuple[int, ...], *, dtype: str, device: str) -> tuple[object, ...]:
        return ("ordinary memory", dims, dtype, device)


@pytest.fixture
def host_cache() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("host_cache", CPU_STUB_DIR / "host_cache.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_of_experts_lie_in_ordinary_memory_on_a_cpu_and_where_they_did_on_other_devices(
    host_cache: types.ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "common.py").write_text(SOURCE)
    spec = host_cache.HostCacheFinder().find_spec(ALLOCATING, [str(tmp_path)])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    options = {"dtype": "int32", "device": "cpu", "pin_memory": True, "allocator": RememberingAllocator()}
    assert module.ALLOC_MEMORY_FUNCS["cpu"]((5, 3, 2), **options) == ("ordinary memory", (5, 3, 2), "int32", "cpu")
    with pytest.raises(AssertionError, match="CUDA"):
        module.ALLOC_MEMORY_FUNCS["cuda"]((5, 3, 2), **options)


def test_no_other_module_is_touched(host_cache: types.ModuleType) -> None:
    assert host_cache.HostCacheFinder().find_spec("sglang.srt.server_args", None) is None
