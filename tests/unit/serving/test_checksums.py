from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from online_agent.errors import CorruptVersion, SwapFailed
from online_agent.serving.checksums import verify_checksums

RNG = np.random.default_rng(0)
Q, K, V, EMBED, NORM = (
    RNG.standard_normal(shape).astype(np.float32) for shape in ((4, 4), (2, 4), (2, 4), (5, 4), (4,))
)
PREFIX = "model.layers.0.self_attn"


def sha(*parts: npt.NDArray[np.generic]) -> str:
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:16]


@pytest.fixture
def serving_dir(tmp_path: Path) -> Path:
    tensors = {f"{PREFIX}.{n}_proj.weight": t for n, t in (("q", Q), ("k", K), ("v", V))}
    save_file(
        {"model.embed_tokens.weight": EMBED, "model.norm.weight": NORM, **tensors}, tmp_path / "model.safetensors"
    )
    return tmp_path


def served() -> dict[str, str]:
    padding = np.zeros((59, 4), np.float32)
    return {
        "model.embed_tokens.weight": sha(EMBED, padding),
        "model.norm.weight": sha(NORM),
        f"{PREFIX}.qkv_proj.weight": sha(Q, K, V),
    }


def test_fused_and_padded_parameters_are_known_from_the_files(serving_dir: Path) -> None:
    verify_checksums(serving_dir, served())


@pytest.mark.parametrize("name", list(served()))
def test_one_other_parameter_is_found_and_named(serving_dir: Path, name: str) -> None:
    with pytest.raises(SwapFailed, match=name.replace(".", r"\.")):
        verify_checksums(serving_dir, served() | {name: "0" * 16})


def test_c14_an_engine_that_reports_nothing_or_something_unknown_is_not_verified(serving_dir: Path) -> None:
    with pytest.raises(SwapFailed, match="no parameter"):
        verify_checksums(serving_dir, {})
    with pytest.raises(SwapFailed, match="has no counterpart"):
        verify_checksums(serving_dir, served() | {"other.weight": "0" * 16})


def test_the_experts_of_a_mixture_are_known_in_their_order_also_beyond_nine(tmp_path: Path) -> None:
    experts = "model.layers.0.mlp.experts"
    matrices = {
        f"{experts}.{e}.{p}_proj.weight": RNG.standard_normal((2, 4) if p != "down" else (4, 2)).astype(np.float32)
        for e in range(11)
        for p in ("gate", "up", "down")
    }
    save_file(matrices, tmp_path / "model.safetensors")
    parts = [[matrices[f"{experts}.{e}.{p}_proj.weight"] for p in ("gate", "up", "down")] for e in range(11)]
    actual = {
        f"{experts}.w13_weight": sha(*(matrix for gate, up, _ in parts for matrix in (gate, up))),
        f"{experts}.w2_weight": sha(*(down for _, _, down in parts)),
    }
    verify_checksums(tmp_path, actual)
    for name in actual:
        with pytest.raises(SwapFailed, match=name):
            verify_checksums(tmp_path, actual | {name: "0" * 16})


def test_served_experts_of_a_directory_without_any_are_not_verified(serving_dir: Path) -> None:
    with pytest.raises(SwapFailed, match=r"experts\.0\.gate_proj\.weight is not in the directory"):
        verify_checksums(serving_dir, served() | {"model.layers.0.mlp.experts.w13_weight": "0" * 16})


def test_an_engine_that_serves_rounded_values_is_verified_too(serving_dir: Path) -> None:
    def bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
        """To the nearest, ties to even, by comparing the two neighbours."""
        low = values.view(np.uint32) >> 16 << 16
        high = low + np.uint32(1 << 16)
        below, above = np.abs(values - low.view(np.float32)), np.abs(high.view(np.float32) - values)
        is_low = (below < above) | ((below == above) & (low >> 16 & 1 == 0))
        return (np.where(is_low, low, high) >> 16).astype(np.uint16)

    rounded = {
        "model.embed_tokens.weight": sha(bf16(EMBED), np.zeros((59, 4), np.uint16)),
        "model.norm.weight": sha(bf16(NORM)),
        f"{PREFIX}.qkv_proj.weight": sha(bf16(Q), bf16(K), bf16(V)),
    }
    verify_checksums(serving_dir, rounded)
    with pytest.raises(SwapFailed):
        verify_checksums(serving_dir, rounded | {"model.norm.weight": sha(NORM)})


def gpu_hash(data: bytes) -> str:
    """The GPU hash, word by word in plain integers."""
    low = (1 << 32) - 1

    def mix(x: int) -> int:
        x = (x ^ x >> 16) * 0x85EBCA6B & low
        x = (x ^ x >> 13) * 0xC2B2AE35 & low
        return x ^ x >> 16

    def turned(x: int, by: int) -> int:
        return (x << by | x >> (32 - by)) & low

    data += bytes(-len(data) % 4)
    words = [int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)]
    seed = 0x243F6A88
    other_seed = (seed * 0x9E3779B1 ^ 0xDEADBEEF) & low
    total = 0
    for start in range(0, len(words), 8192):
        sums = [0, 0]
        for i in range(start, min(start + 8192, len(words))):
            sums[0] += mix(words[i] ^ ((i * 0x27D4EB2D + seed & low) ^ turned(i, 15)))
            sums[1] += mix(words[i] ^ ((i * 0x165667B1 + other_seed & low) ^ turned(i, 13)))
        halves = [mix((part & low) ^ len(words) * 4) for part in sums]
        total += halves[0] << 32 | halves[1]
    mask = (1 << 64) - 1
    total &= mask
    total = (total ^ total >> 30) * 0xBF58476D1CE4E5B9 & mask
    total = (total ^ total >> 27) * 0x94D049BB133111EB & mask
    return f"{total ^ total >> 31:016x}"


def test_the_hash_of_a_gpu_engine_is_computed_without_a_gpu(tmp_path: Path) -> None:
    big = RNG.standard_normal((3, 8192)).astype(np.float32)  # three tiles
    odd = np.arange(7, dtype=np.uint8)  # not a whole number of words
    save_file({"big.weight": big, "odd.weight": odd}, tmp_path / "model.safetensors")
    verify_checksums(tmp_path, {"big.weight": gpu_hash(big.tobytes()), "odd.weight": gpu_hash(odd.tobytes())})
    with pytest.raises(SwapFailed):
        verify_checksums(tmp_path, {"big.weight": gpu_hash(big.tobytes()), "odd.weight": sha(odd)})


@pytest.mark.parametrize("damage", ["absent", "truncated", "header"])
def test_files_that_cannot_be_read_are_corrupt(serving_dir: Path, damage: str) -> None:
    file = serving_dir / "model.safetensors"
    content = file.read_bytes()
    file.unlink()
    if damage != "absent":
        file.write_bytes(content[:-10] if damage == "truncated" else b"\xff" * 40)
    with pytest.raises(CorruptVersion):
        verify_checksums(serving_dir, served())
