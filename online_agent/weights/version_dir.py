"""A version directory that was verified against its manifest, and how a manifest is made from what was written."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from online_agent.errors import CorruptVersion
from online_agent.types import VersionOrigin
from online_agent.weights.adapter import ADAPTER_FILES, Base, is_adapter, read_base
from online_agent.weights.files import relative_files, sha256_of
from online_agent.weights.manifest import (
    LEARNER_NAME,
    MANIFEST_NAME,
    SERVING_NAME,
    STABLE_NAME,
    FileEntry,
    Manifest,
    content_hash,
    read_architecture,
    read_manifest,
)
from online_agent.weights.tensors import read_header, read_headers

_SERVED_FILES = (f"{SERVING_NAME}/config.json", f"{SERVING_NAME}/tokenizer.json")
# What the learner cannot continue without. Seed versions have no learner state yet.
# A recipe without a critic leaves none behind; whether one belongs to it is the learner's to judge.
_STEP_FILES = (f"{LEARNER_NAME}/state.json",)


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a version comes from: what a manifest cannot learn from the files."""

    version: int
    origin: VersionOrigin
    parent: int | None = None
    step: int | None = None
    recipe: str = ""
    config_hash: str = ""


@dataclass(frozen=True, slots=True)
class VersionDir:
    """A verified version on disk. ``serving_dir`` is a complete Hugging Face directory, or holds an adapter for one."""

    path: Path
    manifest: Manifest

    @property
    def serving_dir(self) -> Path:
        return self.path / SERVING_NAME

    @property
    def learner_dir(self) -> Path:
        return self.path / LEARNER_NAME


def describe(directory: Path, lineage: Lineage, known: Mapping[str, FileEntry]) -> Manifest:
    """The manifest of what lies in ``directory``. Entries in ``known`` are taken over, the others computed.

    Raises CorruptVersion when a needed file is missing or a tensor file cannot be read.
    """
    names = relative_files(directory)
    needed = _SERVED_FILES + (_STEP_FILES if lineage.origin is VersionOrigin.STEP else ())
    for name in needed:
        if name not in names:
            raise CorruptVersion(f"version {lineage.version} is incomplete: {name} is missing")
    base = _base_of(directory, names, lineage.version)
    tensors = read_headers(directory / SERVING_NAME)
    if not tensors:
        raise CorruptVersion(f"version {lineage.version} is incomplete: {SERVING_NAME}/ has no tensor")
    for file in sorted((directory / LEARNER_NAME).glob("*.safetensors")):
        read_header(file)
    architecture, is_tied = read_architecture(directory / SERVING_NAME)
    files = {name: known.get(name) or _entry(directory / name) for name in names}
    return Manifest(
        version=lineage.version,
        parent=lineage.parent,
        step=lineage.step,
        origin=lineage.origin,
        recipe=lineage.recipe,
        config_hash=lineage.config_hash,
        content_hash=content_hash(files),
        architecture=architecture,
        is_tied=is_tied,
        created_at=time.time(),
        files=files,
        tensors=tensors,
        base=base,
    )


def verify(path: Path, version: int) -> VersionDir:
    """The version at ``path``, every file compared with the manifest. Raises CorruptVersion saying what differs."""
    stable = path / STABLE_NAME
    if not path.is_dir():
        raise CorruptVersion(f"version {version} is not on disk")
    if not stable.is_file():
        raise CorruptVersion(f"version {version} is not {STABLE_NAME}: its writer did not finish")
    if not (path / MANIFEST_NAME).is_file():
        raise CorruptVersion(f"version {version}: {MANIFEST_NAME} is missing")
    if stable.read_bytes().strip() != sha256_of(path / MANIFEST_NAME).encode():
        raise CorruptVersion(f"version {version}: {MANIFEST_NAME} was changed after it was published")
    manifest = read_manifest(path / MANIFEST_NAME)
    if manifest.version != version:
        raise CorruptVersion(f"{path.name} holds version {manifest.version}")
    for name, entry in manifest.files.items():
        _check_file(path / name, name, entry, version)
    return VersionDir(path, manifest)


def _base_of(directory: Path, names: Collection[str], version: int) -> Base | None:
    serving = directory / SERVING_NAME
    if not is_adapter(serving):
        return None
    for name in ADAPTER_FILES:
        if f"{SERVING_NAME}/{name}" not in names:
            raise CorruptVersion(f"version {version} is incomplete: {SERVING_NAME}/{name} is missing")
    return read_base(serving)


def _entry(path: Path) -> FileEntry:
    return FileEntry(path.stat().st_size, sha256_of(path))


def _check_file(path: Path, name: str, entry: FileEntry, version: int) -> None:
    if not path.is_file():
        raise CorruptVersion(f"version {version}: {name} is missing")
    size = path.stat().st_size
    if size != entry.size:
        raise CorruptVersion(f"version {version}: {name} has {size} bytes instead of {entry.size}")
    if sha256_of(path) != entry.sha256:
        raise CorruptVersion(f"version {version}: {name} was changed after it was published")
