"""What a safetensors file holds, read without torch: names, shapes, dtypes, and whether every value is finite."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from online_agent.errors import CorruptVersion

# A value is infinite or NaN when all exponent bits are set (F8_E4M3: all bits but the sign).
_EXPONENT_BITS: dict[str, tuple[str, int]] = {
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
    "F32": ("<u4", 0x7F80_0000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
    "F8_E5M2": ("u1", 0x7C),
    "F8_E4M3": ("u1", 0x7F),
}
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """``dtype`` is safetensors' own word: F32, BF16, ..."""

    shape: tuple[int, ...]
    dtype: str


def read_header(file: Path) -> dict[str, TensorSpec]:
    """Name → shape and dtype. Raises CorruptVersion for a file that is missing, truncated or no safetensors."""
    try:
        with safe_open(str(file), framework="numpy") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 (no mapping)
            return {name: TensorSpec(tuple(s.get_shape()), str(s.get_dtype())) for name, s in slices.items()}
    except (SafetensorError, OSError) as error:
        raise CorruptVersion(f"{file.name} is no readable safetensors file: {error}") from error


def read_headers(directory: Path) -> dict[str, TensorSpec]:
    """The tensors of all safetensors files of a directory. Raises CorruptVersion when two files hold one name."""
    tensors: dict[str, TensorSpec] = {}
    for file in sorted(directory.glob("*.safetensors")):
        for name, spec in read_header(file).items():
            if name in tensors:
                raise CorruptVersion(f"{file.name} repeats the tensor {name}")
            tensors[name] = spec
    return tensors


def check_finite(file: Path) -> None:
    """Raises CorruptVersion naming the first tensor that holds NaN or an infinity. Integer tensors always pass."""
    read_header(file)
    for name, dtype, values in _raw_values(file):
        mask = values.dtype.type(_EXPONENT_BITS[dtype][1])
        for start in range(0, len(values), _CHUNK):
            bad = (values[start : start + _CHUNK] & mask) == mask
            if bad.any():
                raise CorruptVersion(f"{file.name}: {name} is not finite at element {start + int(bad.argmax())}")


def _raw_values(file: Path) -> Iterator[tuple[str, str, np.ndarray[Any, Any]]]:
    """(name, dtype, flat unsigned integers) of each floating-point tensor, mapped and not copied."""
    with file.open("rb") as stream:
        header_size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(header_size))
    content = np.memmap(file, np.uint8, mode="r", offset=0)
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] not in _EXPONENT_BITS:
            continue
        start, end = (8 + header_size + offset for offset in entry["data_offsets"])
        yield name, entry["dtype"], content[start:end].view(_EXPONENT_BITS[entry["dtype"]][0])
