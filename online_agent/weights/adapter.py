"""A version that serves an adapter: what its ``serving/`` holds and which base it belongs to. No torch.

``serving/`` of such a version has the configuration, tokenizer and template of its base, and instead of weights

    adapter_config.json, adapter_model.safetensors   the layout of peft, which the engine reads
    base.json                                        number and content hash of the version whose weights it adapts
    probe.json                                       a prompt and the log-probs that the adapted policy gives it
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from online_agent.errors import CorruptVersion, ForeignVersion

CONFIG_FILE = "adapter_config.json"
TENSORS_FILE = "adapter_model.safetensors"
BASE_FILE = "base.json"
PROBE_FILE = "probe.json"
ADAPTER_FILES = (CONFIG_FILE, TENSORS_FILE, BASE_FILE, PROBE_FILE)
MODULE_PREFIX = "base_model.model."
"""What peft puts before the name of a module of the base."""


@dataclass(frozen=True, slots=True)
class Base:
    """The version whose weights an adapter was trained over. Its directory lies beside the adapter's."""

    version: int
    content_hash: str


@dataclass(frozen=True, slots=True)
class Probe:
    """``logprobs[i]`` is log pi(token_ids[i + 1] | token_ids[: i + 1]) at temperature 1."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def adapter_name(version: int) -> str:
    """What the engine knows the adapter of a version by."""
    return f"v{version:06d}"


def version_of(name: str) -> int | None:
    """The version of an adapter's name, or None for a name that is not one of ours."""
    digits = name.removeprefix("v")
    return int(digits) if name.startswith("v") and len(digits) >= 6 and digits.isdecimal() else None


def is_adapter(serving_dir: Path) -> bool:
    return (serving_dir / CONFIG_FILE).is_file()


def base_serving_dir(serving_dir: Path) -> Path:
    """The directory with the weights under what ``serving_dir`` serves: itself, or that of its base."""
    if not is_adapter(serving_dir):
        return serving_dir
    version_dir = serving_dir.parent
    return version_dir.parent / adapter_name(read_base(serving_dir).version) / serving_dir.name


def read_base(serving_dir: Path) -> Base:
    """Raises CorruptVersion when it does not say."""
    values = _read(serving_dir / BASE_FILE)
    try:
        return Base(int(values["version"]), str(values["content_hash"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptVersion(f"{BASE_FILE} names no version and content hash: {error!r}") from error


def read_probe(serving_dir: Path) -> Probe:
    """Raises CorruptVersion for a probe that cannot be asked or judged."""
    values = _read(serving_dir / PROBE_FILE)
    try:
        probe = Probe(tuple(map(int, values["token_ids"])), tuple(map(float, values["logprobs"])))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptVersion(f"{PROBE_FILE} cannot be read: {error!r}") from error
    if len(probe.token_ids) < 2 or len(probe.logprobs) != len(probe.token_ids) - 1:
        raise CorruptVersion(f"{PROBE_FILE} has {len(probe.token_ids)} tokens and {len(probe.logprobs)} log-probs")
    return probe


def read_rank(serving_dir: Path) -> int:
    """Raises CorruptVersion when the configuration does not say."""
    try:
        return int(_read(serving_dir / CONFIG_FILE)["r"])
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptVersion(f"{CONFIG_FILE} names no rank: {error!r}") from error


def write_base(serving_dir: Path, base: Base) -> None:
    (serving_dir / BASE_FILE).write_text(json.dumps(asdict(base)))


def write_probe(serving_dir: Path, probe: Probe) -> None:
    (serving_dir / PROBE_FILE).write_text(json.dumps(asdict(probe)))


def check_belongs(version: int, ours: Base, served: Base) -> None:
    """Raises ForeignVersion unless both are the same weights, whatever their numbers."""
    if ours.content_hash != served.content_hash:
        raise ForeignVersion(
            f"version {version} belongs to the weights of version {ours.version} ({ours.content_hash[:12]}), but the "
            f"engine holds those of version {served.version} ({served.content_hash[:12]})"
        )


def adapted_weights(tensors: Iterable[str]) -> dict[str, dict[str, str]]:
    """Weight of the base → the names of its two factors, ``A`` and ``B``. Raises CorruptVersion for half a pair."""
    weights: dict[str, dict[str, str]] = {}
    for name in tensors:
        module, _, part = name.rpartition(".lora_")
        if not name.startswith(MODULE_PREFIX) or part not in ("A.weight", "B.weight"):
            raise CorruptVersion(f"{TENSORS_FILE} holds {name}, which is no part of an adapter")
        weights.setdefault(f"{module.removeprefix(MODULE_PREFIX)}.weight", {})[part[0]] = name
    for factors in weights.values():
        if len(factors) != 2:
            raise CorruptVersion(f"{TENSORS_FILE} holds {next(iter(factors.values()))} without its other factor")
    return weights


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CorruptVersion(f"{path.name} cannot be read: {error!r}") from error
    if not isinstance(values, dict):
        raise CorruptVersion(f"{path.name} is no object")
    return values
