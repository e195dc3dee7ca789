"""Version directories: published whole, verified before use, safe against kills, full disks and retention."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError
from safetensors.numpy import save_file

from online_agent.errors import Conflict, CorruptVersion, StorageFull
from online_agent.types import VersionOrigin
from online_agent.weights import WeightStore, files
from tests.unit.weights.conftest import TENSORS, publish, write_learner, write_model


def test_a_published_version_says_what_it_is(store: WeightStore) -> None:
    version = publish(store, 1)
    manifest = version.manifest
    assert (manifest.version, manifest.parent, manifest.step) == (1, 0, 1)
    assert (manifest.origin, manifest.recipe, manifest.config_hash) == (VersionOrigin.STEP, "sao", "c")
    assert (manifest.architecture, manifest.is_tied) == ("Qwen3ForCausalLM", True)
    assert {name: (spec.shape, spec.dtype) for name, spec in manifest.tensors.items()} == {
        "model.embed_tokens.weight": ((4, 3), "F32"),
        "model.norm.weight": ((3,), "F32"),
    }
    critic = version.learner_dir / "critic.safetensors"
    entry = manifest.files["learner/critic.safetensors"]
    assert (entry.size, entry.sha256) == (critic.stat().st_size, hashlib.sha256(critic.read_bytes()).hexdigest())
    assert sorted(path.name for path in version.serving_dir.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert manifest.size_bytes == sum(entry.size for entry in manifest.files.values())


def test_the_content_hash_is_that_of_the_serving_tensors(store: WeightStore) -> None:
    version = publish(store, 1)
    digest = hashlib.sha256((version.serving_dir / "model.safetensors").read_bytes()).hexdigest()
    listed = json.dumps([["serving/model.safetensors", digest]]).encode()
    assert version.manifest.content_hash == hashlib.sha256(listed).hexdigest()
    assert publish(store, 2, {**TENSORS, "model.norm.weight": np.zeros(3, np.float32)}).manifest.content_hash != (
        version.manifest.content_hash
    )


def test_names_reach_the_disk_before_stable_does(store: WeightStore, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real_fsync, real_rename = os.fsync, Path.rename

    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        calls.append(f"fsync {path.removeprefix(str(store.root))}")
        real_fsync(descriptor)

    def rename(self: Path, target: Path) -> Path:
        calls.append(f"rename {target.name}")
        return real_rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    publish(store, 1)
    renamed = calls.index("rename v000001")
    before = set(calls[:renamed])
    assert {f"fsync /v000001.tmp/{name}" for name in ("manifest.json", "serving/model.safetensors")} <= before
    assert {"fsync /v000001.tmp/serving", "fsync /v000001.tmp/learner", "fsync /v000001.tmp"} <= before
    assert calls[renamed + 1 :] == ["fsync ", "fsync /v000001/STABLE", "fsync /v000001"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: (path / "learner" / "critic.safetensors").unlink(), "learner/critic.safetensors is missing"),
        (lambda path: (path / "learner" / "state.json").unlink(), "learner/state.json is missing"),
        (lambda path: _truncate(path / "serving" / "model.safetensors", 50), "has 50 bytes instead of"),
        (lambda path: _flip(path / "serving" / "model.safetensors"), "serving/model.safetensors was changed"),
        (lambda path: _flip(path / "manifest.json"), "manifest.json was changed"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda path: (path / "STABLE").unlink(), "is not STABLE"),
        (lambda path: shutil.rmtree(path), "is not on disk"),
    ],
)
def test_a_version_that_differs_from_its_manifest_is_never_opened(store: WeightStore, damage, reason: str) -> None:  # type: ignore[no-untyped-def]
    """C16: whatever is wrong with version 2, the store falls back to version 1 and says why."""
    publish(store, 1)
    damage(publish(store, 2).path)
    with pytest.raises(CorruptVersion, match=reason):
        store.open(2)
    assert store.latest_stable() == 1


def _truncate(path: Path, size: int) -> None:
    path.chmod(0o644)
    os.truncate(path, size)


def _flip(path: Path) -> None:
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(bytes(content))


def test_a_half_written_version_is_reported_removed_and_can_be_written_again(store: WeightStore) -> None:
    """C16: what kill -9 leaves behind at each point of the write."""
    publish(store, 8)
    (store.root / "v000009.tmp" / "serving").mkdir(parents=True)
    (store.root / "v000009.tmp" / "serving" / "model.safetensors").write_bytes(b"half")
    (store.root / "v000010" / "serving").mkdir(parents=True)
    assert store.latest_stable() == 8
    assert store.versions() == [0, 8]
    assert store.clean() == ["v000009.tmp: half-written, removed", "v000010: half-written, removed"]
    assert store.clean() == []
    assert publish(store, 9).manifest.version == 9
    assert store.latest_stable() == 9


def test_a_half_written_version_can_be_written_again_without_cleaning(store: WeightStore) -> None:
    (store.root / "v000001.tmp" / "learner").mkdir(parents=True)
    (store.root / "v000001").mkdir()
    assert publish(store, 1).manifest.version == 1


def test_a_corrupt_version_is_set_aside_and_can_be_written_again(store: WeightStore) -> None:
    (publish(store, 1).path / "learner" / "critic.safetensors").unlink()
    (line,) = store.clean()
    assert line.startswith("v000001: version 1: learner/critic.safetensors is missing")
    assert (store.root / "v000001.corrupt").is_dir()
    assert publish(store, 1).manifest.version == 1


def test_what_a_living_process_writes_is_left_alone(store: WeightStore) -> None:
    partial = store.root / "v000001.tmp"
    partial.mkdir()
    descriptor = os.open(partial, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        assert store.clean() == ["v000001.tmp: being written, left alone"]
        with pytest.raises(Conflict, match="being written"):
            publish(store, 1)
        assert partial.is_dir()
    finally:
        os.close(descriptor)
    assert publish(store, 1).manifest.version == 1


def test_a_published_version_is_never_written_again(store: WeightStore) -> None:
    first = publish(store, 1).manifest
    with pytest.raises(Conflict, match="version 1 is written already"):
        publish(store, 1)
    assert store.open(1).manifest == first


@pytest.mark.parametrize("missing", ["serving/config.json", "serving/tokenizer.json", "learner/state.json"])
def test_an_incomplete_version_is_not_published(store: WeightStore, missing: str) -> None:
    def write() -> None:
        with store.writer(1, parent=0, step=1) as directory:
            write_model(directory / "serving")
            write_learner(directory / "learner")
            (directory / missing).unlink()

    with pytest.raises(CorruptVersion, match=f"incomplete: {missing} is missing"):
        write()
    assert os.listdir(store.root) == ["v000000"]


def test_a_truncated_tensor_file_is_not_published(store: WeightStore) -> None:
    def write() -> None:
        with store.writer(1, parent=0, step=1) as directory:
            write_model(directory / "serving")
            write_learner(directory / "learner")
            os.truncate(directory / "serving" / "model.safetensors", 100)

    with pytest.raises(CorruptVersion, match=r"model\.safetensors is no readable safetensors file"):
        write()
    assert os.listdir(store.root) == ["v000000"]


def test_an_exception_while_writing_publishes_nothing(store: WeightStore) -> None:
    def write() -> None:
        with store.writer(1, parent=0, step=1) as directory:
            write_model(directory / "serving")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert os.listdir(store.root) == ["v000000"]


@pytest.mark.parametrize("call", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
def test_a_disk_that_fills_at_any_sync_leaves_nothing_half_published(
    store: WeightStore, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    real_fsync, calls = os.fsync, iter(range(1, 100))

    def fsync(descriptor: int) -> None:
        if next(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageFull, match="no space left while writing version 1"):
        publish(store, 1)
    monkeypatch.undo()
    assert os.listdir(store.root) == ["v000000"]
    assert publish(store, 1).manifest.version == 1


def test_too_little_space_is_named_before_any_work(store: WeightStore) -> None:
    assert store.free_bytes() > 0
    store.require_free(1)
    with pytest.raises(StorageFull, match=f"{2**62} are needed"):
        store.require_free(2**62)


def test_a_rollback_is_a_new_version_with_the_old_content(store: WeightStore) -> None:
    source = publish(store, 1)
    publish(store, 2, {**TENSORS, "model.norm.weight": np.zeros(3, np.float32)})
    copy = store.copy_as(1, 3, step=7)
    manifest = store.open(3).manifest
    assert copy.manifest == manifest
    assert manifest.content_hash == source.manifest.content_hash
    assert (manifest.version, manifest.parent, manifest.step) == (3, 1, 7)
    assert manifest.origin is VersionOrigin.ROLLBACK
    assert manifest.files == source.manifest.files
    assert os.path.samefile(copy.learner_dir / "critic.safetensors", source.learner_dir / "critic.safetensors")
    assert store.prune({2, 3}) == [0, 1]
    assert store.open(3).manifest == manifest


def test_where_links_are_impossible_the_content_is_copied(store: WeightStore, monkeypatch: pytest.MonkeyPatch) -> None:
    source = publish(store, 1)

    def link(_source: Path, _target: Path) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", link)
    copy = store.copy_as(1, 2)
    assert store.open(2).manifest.content_hash == source.manifest.content_hash
    assert not os.path.samefile(copy.learner_dir / "state.json", source.learner_dir / "state.json")


def test_a_corrupt_version_cannot_be_rolled_back_to(store: WeightStore) -> None:
    (publish(store, 1).path / "learner" / "state.json").unlink()
    with pytest.raises(CorruptVersion):
        store.copy_as(1, 2)
    assert store.versions() == [0, 1]


def test_published_files_are_read_only(store: WeightStore) -> None:
    version = publish(store, 1)
    assert {oct((version.path / name).stat().st_mode & 0o777) for name in version.manifest.files} == {"0o444"}


def test_pruning_keeps_what_it_is_told_the_last_verified_and_everything_newer(store: WeightStore) -> None:
    """C32: a version that may still be on its way into the database (5) and the last verified one are kept."""
    for version in range(1, 6):
        publish(store, version)
    assert store.prune({1, 4}) == [0, 2, 3]
    assert store.versions() == [1, 4, 5]
    assert store.prune(set()) == []
    (store.path(5) / "learner" / "state.json").unlink()
    assert store.prune({5}) == [1]
    assert store.versions() == [4, 5]
    assert not list(store.root.glob("*.gone"))


def test_what_was_set_aside_stays_to_be_looked_at_until_it_is_older_than_everything_kept(store: WeightStore) -> None:
    for version in (1, 2, 3):
        publish(store, version)
    (store.path(2) / "learner" / "state.json").unlink()
    store.clean()
    store.prune({1, 3})
    assert (store.root / "v000002.corrupt").is_dir()
    store.prune({3})
    assert sorted(os.listdir(store.root)) == ["v000003"]


def test_a_prune_that_was_killed_is_finished_by_clean(store: WeightStore) -> None:
    publish(store, 1)
    store.path(0).rename(store.root / "v000000.gone")
    assert store.versions() == [1]
    assert store.clean() == ["v000000.gone: half-written, removed"]


def test_a_full_disk_is_named_whichever_library_met_it() -> None:
    def fail(error: Exception) -> None:
        with files.storage_full_named("version 1"):
            raise error

    with pytest.raises(StorageFull):
        fail(SafetensorError("I/O error: No space left on device (os error 28)"))
    with pytest.raises(SafetensorError):
        fail(SafetensorError("header too small"))
    with pytest.raises(OSError, match="denied"):
        fail(OSError(errno.EACCES, "denied"))


def test_a_save_file_that_meets_a_full_disk_raises_storage_full(store: WeightStore) -> None:
    """/dev/full refuses every write with ENOSPC."""

    def write() -> None:
        with store.writer(1, parent=0, step=1) as directory:
            write_model(directory / "serving")
            (directory / "learner" / "critic.safetensors").symlink_to("/dev/full")
            with (directory / "learner" / "critic.safetensors").open("wb", buffering=0) as stream:
                stream.write(b"x")
            save_file({"w": np.ones(2, np.float32)}, directory / "learner" / "never.safetensors")

    with pytest.raises(StorageFull):
        write()
    assert os.listdir(store.root) == ["v000000"]


def test_a_manifest_of_another_version_or_format_is_refused(store: WeightStore) -> None:
    version = publish(store, 1)
    shutil.copytree(version.path, store.path(2))
    with pytest.raises(CorruptVersion, match="v000002 holds version 1"):
        store.open(2)
    manifest = version.path / "manifest.json"
    manifest.chmod(0o644)
    content = manifest.read_bytes().replace(b'"format": 1', b'"format": 2')
    manifest.write_bytes(content)
    (version.path / "STABLE").write_text(hashlib.sha256(content).hexdigest())
    with pytest.raises(CorruptVersion, match=r"v000001/manifest\.json has an unknown format"):
        store.open(1)
