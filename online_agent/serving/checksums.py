"""What ``/weights_checker`` must answer for a directory of weights, computed from its files alone.

SGLang 0.5.23 hashes the bytes of each parameter: on a CPU the first eight bytes of their sha256; on a GPU a sum of
mixed words per tile of 8192 words (``sglang.kernels.ops.memory.gpu_tensor_hash``). Its parameters are those of the
checkpoint with query, key and value laid end to end, gate and up likewise, and the vocabulary padded with zero rows
to a multiple of 64. A head that the checkpoint leaves out is tied to the embedding and has no parameter. The experts
of a mixture lie in two parameters per layer: each one's gate and up after another's, and each one's down.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from online_agent.errors import CorruptVersion, SwapFailed

FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
FUSED_EXPERTS = {"w13_weight": ("gate_proj", "up_proj"), "w2_weight": ("down_proj",)}
VOCAB_PARAMETERS = ("embed_tokens.weight", "lm_head.weight")
VOCAB_MULTIPLE = 64

Bytes = npt.NDArray[np.uint8]


def verify_checksums(serving_dir: Path, actual: Mapping[str, str]) -> None:
    """Every served parameter has the bytes of the directory. Raises SwapFailed naming the first that has not.

    The engine may hold the values in the other of float32 and bfloat16, and hashes differently on a GPU: one
    combination must fit all parameters.
    """
    if not actual:
        raise SwapFailed("the engine reports no parameter at all")
    tensors = read_tensors(serving_dir)
    first_mismatch = ""
    for hash_bytes in (_sha256_hash, _tile_hash):
        for convert in (_as_stored, _as_other_dtype):
            mismatch = _first_mismatch(tensors, actual, hash_bytes, convert)
            if not mismatch:
                return
            first_mismatch = first_mismatch or mismatch
    raise SwapFailed(f"{serving_dir}: {first_mismatch}")


class StoredTensor(NamedTuple):
    dtype: str
    data: Bytes
    num_rows: int


def read_tensors(serving_dir: Path) -> dict[str, StoredTensor]:
    """The tensors of all safetensors files of the directory, their bytes mapped from disk."""
    tensors: dict[str, StoredTensor] = {}
    files = sorted(serving_dir.glob("*.safetensors"))
    if not files:
        raise CorruptVersion(f"{serving_dir} holds no safetensors file")
    for file in files:
        try:
            raw = np.memmap(file, np.uint8, "r")
            header_size = int(raw[:8].view("<u8")[0])
            header: dict[str, Any] = orjson.loads(raw[8 : 8 + header_size].tobytes())
            header.pop("__metadata__", None)
            for name, entry in header.items():
                start, end = entry["data_offsets"]
                data = raw[8 + header_size + start : 8 + header_size + end]
                if len(data) != end - start:
                    raise CorruptVersion(f"{file} is truncated: {name} has {len(data)} of {end - start} bytes")
                tensors[name] = StoredTensor(entry["dtype"], data, entry["shape"][0] if entry["shape"] else 1)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptVersion(f"cannot read {file}: {error}") from error
    return tensors


def _first_mismatch(
    tensors: Mapping[str, StoredTensor],
    actual: Mapping[str, str],
    hash_bytes: Callable[[Bytes], str],
    convert: Callable[[str, Bytes], Bytes],
) -> str:
    for name, checksum in actual.items():
        parts = _checkpoint_names(name, tensors)
        missing = [part for part in parts if part not in tensors]
        if missing:
            return f"served parameter {name} has no counterpart: {missing[0]} is not in the directory"
        data = _joined([convert(tensors[part].dtype, tensors[part].data) for part in parts])
        if name.endswith(VOCAB_PARAMETERS):
            data = _padded(data, tensors[parts[0]].num_rows, VOCAB_MULTIPLE)
        if hash_bytes(data) != checksum:
            return f"served parameter {name} has other values than the directory"
    return ""


def _checkpoint_names(name: str, tensors: Mapping[str, StoredTensor]) -> list[str]:
    experts, _, fused_experts = name.rpartition(".")
    if experts.endswith(".experts") and fused_experts in FUSED_EXPERTS:
        projections = FUSED_EXPERTS[fused_experts]
        num_experts = sum(_is_expert_of(other, experts, projections[0]) for other in tensors)
        # With no expert at all, the first one is asked for, and found missing.
        return [f"{experts}.{e}.{p}.weight" for e in range(max(num_experts, 1)) for p in projections]
    for fused, parts in FUSED.items():
        if f".{fused}." in name:
            return [name.replace(f".{fused}.", f".{part}.") for part in parts]
    return [name]


def _is_expert_of(name: str, experts: str, projection: str) -> bool:
    return name.startswith(f"{experts}.") and name.endswith(f".{projection}.weight")


def _joined(parts: list[Bytes]) -> Bytes:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _padded(data: Bytes, num_rows: int, multiple: int) -> Bytes:
    extra_rows = -num_rows % multiple
    if not extra_rows or not num_rows:
        return data
    return np.concatenate([data, np.zeros(extra_rows * (len(data) // num_rows), np.uint8)])


def _as_stored(dtype: str, data: Bytes) -> Bytes:
    return data


def _as_other_dtype(dtype: str, data: Bytes) -> Bytes:
    """float32 rounded to the nearest even bfloat16, or bfloat16 widened to float32; other types as they are."""
    if dtype == "F32":
        bits = np.frombuffer(data, "<u4")
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return (rounded >> np.uint32(16)).astype("<u2").view(np.uint8)
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << np.uint32(16)).astype("<u4").view(np.uint8)
    return data


def _sha256_hash(data: Bytes) -> str:
    return hashlib.sha256(np.ascontiguousarray(data).data).hexdigest()[:16]


SEED = 0x243F6A88
TILE_WORDS = 8192
MASK_64 = (1 << 64) - 1


def _tile_hash(data: Bytes) -> str:
    """The GPU hash: two 32-bit sums of mixed words per tile, tiles added modulo 2**64, splitmix64 at the end."""
    words = np.frombuffer(np.concatenate([data, np.zeros(-len(data) % 4, np.uint8)]), "<u4")
    if not len(words):
        return f"{0:016x}"
    seeds = np.uint32(SEED), np.uint32(((SEED * 0x9E3779B1) ^ 0xDEADBEEF) & 0xFFFFFFFF)
    index = np.arange(len(words), dtype=np.uint32)
    starts = np.arange(0, len(words), TILE_WORDS)
    num_bytes = np.uint32((len(words) * 4) & 0xFFFFFFFF)
    halves = []
    for seed, factor, rotation in zip(seeds, (np.uint32(0x27D4EB2D), np.uint32(0x165667B1)), (15, 13), strict=True):
        turned = (index << np.uint32(rotation)) | (index >> np.uint32(32 - rotation))
        mixed = _mix(words ^ ((index * factor + seed) ^ turned))
        sums = np.add.reduceat(mixed, starts, dtype=np.uint32)
        halves.append(_mix(sums ^ num_bytes).astype(np.uint64))
    total = int(((halves[0] << np.uint64(32)) | halves[1]).sum(dtype=np.uint64))
    return f"{_splitmix64(total):016x}"


def _mix(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    words = (words ^ (words >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return words ^ (words >> np.uint32(16))


def _splitmix64(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK_64
    return value ^ (value >> 31)
