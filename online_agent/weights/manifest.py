"""The manifest: what a version is on disk, file by file and tensor by tensor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from online_agent.errors import CorruptVersion
from online_agent.types import VersionOrigin
from online_agent.weights.adapter import ADAPTER_FILES, PROBE_FILE, Base
from online_agent.weights.tensors import TensorSpec

MANIFEST_NAME = "manifest.json"
STABLE_NAME = "STABLE"
SERVING_NAME = "serving"
LEARNER_NAME = "learner"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class FileEntry:
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """``files`` maps paths relative to the version directory; ``tensors`` are the serving ones.

    ``architecture`` is the first of config.json's ``architectures``; ``is_tied``: the head is the embedding.
    ``content_hash`` is equal for versions that serve the same weights. ``base`` is the version that an adapter adapts,
    None for whole weights.
    """

    version: int
    parent: int | None
    step: int | None
    origin: VersionOrigin
    recipe: str
    config_hash: str
    content_hash: str
    architecture: str
    is_tied: bool
    created_at: float
    files: Mapping[str, FileEntry]
    tensors: Mapping[str, TensorSpec]
    base: Base | None = None

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.files.values())

    def to_bytes(self) -> bytes:
        return (json.dumps({"format": _FORMAT, **asdict(self)}, indent=1, sort_keys=True) + "\n").encode()


def read_manifest(path: Path) -> Manifest:
    """Raises CorruptVersion for a manifest that is missing or cannot be read."""
    try:
        values: dict[str, Any] = json.loads(path.read_bytes())
        if values.pop("format") != _FORMAT:
            raise CorruptVersion(f"{path.parent.name}/{path.name} has an unknown format")
        values["origin"] = VersionOrigin(values["origin"])
        values["base"] = Base(**values["base"]) if values.get("base") else None
        values["files"] = {name: FileEntry(**entry) for name, entry in values["files"].items()}
        values["tensors"] = {
            name: TensorSpec(tuple(spec["shape"]), spec["dtype"]) for name, spec in values["tensors"].items()
        }
        return Manifest(**values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptVersion(f"{path.parent.name}/{path.name} cannot be read: {error!r}") from error


def content_hash(files: Mapping[str, FileEntry]) -> str:
    """SHA-256 over the sorted (name, sha256) of the serving tensors' files, and of what else defines an adapter."""
    defining = {f"{SERVING_NAME}/{name}" for name in ADAPTER_FILES if name != PROBE_FILE}
    served = [
        (name, entry.sha256)
        for name, entry in sorted(files.items())
        if name in defining or (name.startswith(f"{SERVING_NAME}/") and name.endswith(".safetensors"))
    ]
    return hashlib.sha256(json.dumps(served).encode()).hexdigest()


def read_architecture(serving_dir: Path) -> tuple[str, bool]:
    """(architecture, is_tied) of config.json. Raises CorruptVersion when it does not say."""
    path = serving_dir / "config.json"
    try:
        config = json.loads(path.read_bytes())
        return str(config["architectures"][0]), bool(config.get("tie_word_embeddings", False))
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise CorruptVersion(f"{path.name} names no architecture: {error!r}") from error
