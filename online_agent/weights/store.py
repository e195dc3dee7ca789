"""Version directories: written whole or not at all, verified before use, never written again.

A version is ``v000012/`` with ``manifest.json`` (size and sha256 of each file) and ``STABLE``, written last
(sha256 of the manifest). Anything else with a version's name is what a kill left behind. While a process writes a
directory it holds a lock on it, so ``clean`` in another process leaves it alone.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from online_agent.errors import Conflict, CorruptVersion, StorageFull
from online_agent.types import VersionOrigin
from online_agent.weights.adapter import Base, check_belongs, is_adapter, read_base
from online_agent.weights.files import (
    exclusive_directory,
    fsync_path,
    fsync_tree,
    link_or_copy,
    make_read_only,
    storage_full_named,
    write_durably,
)
from online_agent.weights.manifest import LEARNER_NAME, MANIFEST_NAME, SERVING_NAME, STABLE_NAME, Manifest
from online_agent.weights.seed import seed_files
from online_agent.weights.version_dir import Lineage, VersionDir, describe, verify

__all__ = ["VersionDir", "WeightStore"]

logger = logging.getLogger(__name__)

_VERSION = re.compile(r"v(\d{6,})")
_PARTIAL = re.compile(r"v\d{6,}\.(tmp|gone)")


class WeightStore:
    """The versions below ``root``, which is created when it is missing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    def path(self, version: int) -> Path:
        return self.root / f"v{version:06d}"

    @contextmanager
    def writer(
        self,
        version: int,
        *,
        parent: int | None = None,
        step: int | None = None,
        origin: VersionOrigin = VersionOrigin.STEP,
        recipe: str = "",
        config_hash: str = "",
    ) -> Iterator[Path]:
        """A directory with empty ``serving/`` and ``learner/`` to fill; published when the block ends.

        Nothing is published when the block raises. Raises StorageFull on a full disk, CorruptVersion when what was
        written is incomplete or unreadable, Conflict when the version exists or is being written.
        """
        lineage = Lineage(version, origin, parent, step, recipe, config_hash)
        with self._locked_new(version) as directory, storage_full_named(f"version {version}"):
            yield directory
            self._publish(directory, describe(directory, lineage, {}))

    def open(self, version: int) -> VersionDir:
        """The version, every file of it compared with the manifest. Raises CorruptVersion saying what differs."""
        return verify(self.path(version), version)

    def open_base(self, version_dir: VersionDir) -> VersionDir:
        """What an adapter's version adapts, verified; the version itself where it is whole.

        Raises CorruptVersion, and ForeignVersion when other weights lie under the base's number.
        """
        base = version_dir.manifest.base
        if base is None:
            return version_dir
        found = self.open(base.version)
        check_belongs(version_dir.manifest.version, base, Base(base.version, found.manifest.content_hash))
        return found

    def versions(self) -> list[int]:
        """The numbers of all published directories, verified or not, in order."""
        found = (_VERSION.fullmatch(path.name) for path in self.root.iterdir() if (path / STABLE_NAME).is_file())
        return sorted(int(match[1]) for match in found if match)

    def latest_stable(self) -> int | None:
        """The newest version that passes ``open``."""
        for version in reversed(self.versions()):
            try:
                self.open(version)
            except CorruptVersion as error:
                logger.warning("version skipped", extra={"version": version, "reason": error.message})
            else:
                return version
        return None

    def clean(self) -> list[str]:
        """What a kill left behind is gone, and corrupt versions are set aside; returns a line about each.

        Their numbers can be written again. Directories that a living process writes are left alone.
        """
        report: list[str] = []
        for path in sorted(self.root.iterdir()):
            if not path.is_dir():
                continue
            is_version = _VERSION.fullmatch(path.name)
            if _PARTIAL.fullmatch(path.name) or (is_version and not (path / STABLE_NAME).is_file()):
                with exclusive_directory(path) as is_ours:
                    if is_ours:
                        shutil.rmtree(path)
                report.append(f"{path.name}: {'half-written, removed' if is_ours else 'being written, left alone'}")
            elif is_version:
                report.extend(self._set_aside_if_corrupt(path, int(is_version[1])))
        return report

    def copy_as(
        self, version: int, new_version: int, *, step: int | None = None, origin: VersionOrigin = VersionOrigin.ROLLBACK
    ) -> VersionDir:
        """``new_version`` has the content of ``version``, its parent (hard links where possible).

        Raises CorruptVersion when the source does not verify, and what ``writer`` raises.
        """
        source = self.open(version)
        recipe, config_hash = source.manifest.recipe, source.manifest.config_hash
        lineage = Lineage(new_version, origin, version, step, recipe, config_hash)
        with self._locked_new(new_version) as directory, storage_full_named(f"version {new_version}"):
            for name in source.manifest.files:
                link_or_copy(source.path / name, directory / name)
            manifest = describe(directory, lineage, source.manifest.files)
            self._publish(directory, manifest)
        return VersionDir(self.path(new_version), manifest)

    def import_seed(self, model_dir: Path, version: int = 0, *, config_hash: str = "") -> VersionDir:
        """The Hugging Face directory is a version. Raises WeightsError naming what it lacks."""
        files = seed_files(model_dir)
        self.require_free(sum(file.stat().st_size for file in files))
        with self.writer(version, origin=VersionOrigin.SEED, recipe="seed", config_hash=config_hash) as directory:
            for file in files:
                shutil.copyfile(file, directory / SERVING_NAME / file.name)
        return self.open(version)

    def prune(self, keep: Collection[int]) -> list[int]:
        """Versions below the newest kept one and not in ``keep`` are deleted; returns them.

        The base of an adapter that stays is kept with it. Newer ones may be on their way into the database. The newest
        version that verifies always stays. Corrupt directories that were set aside go when they are older than
        everything kept.
        """
        kept = set(keep)
        newest = self.latest_stable()
        if not kept or newest is None:
            return []
        doomed = {v for v in self.versions() if v < max(kept) and v not in kept and v != newest}
        gone = sorted(doomed - self._bases(set(self.versions()) - doomed))
        for version in gone:
            renamed = self.root / f"v{version:06d}.gone"
            self.path(version).rename(renamed)
            fsync_path(self.root)
            shutil.rmtree(renamed)
        for aside in self.root.glob("v*.corrupt"):
            if int(aside.name[1:].removesuffix(".corrupt")) < min(kept):
                shutil.rmtree(aside)
        return gone

    def _bases(self, versions: Collection[int]) -> set[int]:
        """The versions that adapters among ``versions`` adapt."""
        bases = set()
        for serving in (self.path(version) / SERVING_NAME for version in versions):
            with suppress(CorruptVersion):  # it can never serve
                bases |= {read_base(serving).version} if is_adapter(serving) else set()
        return bases

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.root).free

    def require_free(self, num_bytes: int) -> None:
        """Raises StorageFull unless ``num_bytes`` are free."""
        free = self.free_bytes()
        if free < num_bytes:
            raise StorageFull(f"{free} bytes are free below the weights directory, {num_bytes} are needed")

    @contextmanager
    def _locked_new(self, version: int) -> Iterator[Path]:
        """An empty ``v<N>.tmp`` under this process's lock; whatever is not published is removed at the end."""
        final, partial = self.path(version), self.root / f"v{version:06d}.tmp"
        if (final / STABLE_NAME).is_file():
            raise Conflict(f"version {version} is written already")
        for leftover in (partial, final):
            self._remove_leftover(leftover, version)
        with storage_full_named(f"version {version}"):
            partial.mkdir()
        with exclusive_directory(partial) as is_ours:
            if not is_ours:
                raise Conflict(f"version {version} is being written")
            try:
                with storage_full_named(f"version {version}"):
                    (partial / SERVING_NAME).mkdir()
                    (partial / LEARNER_NAME).mkdir()
                yield partial
            finally:
                shutil.rmtree(partial, ignore_errors=True)
                if final.is_dir() and not (final / STABLE_NAME).is_file():
                    shutil.rmtree(final, ignore_errors=True)

    def _remove_leftover(self, path: Path, version: int) -> None:
        if not path.is_dir():
            return
        with exclusive_directory(path) as is_ours:
            if not is_ours:
                raise Conflict(f"version {version} is being written")
            logger.warning("half-written version removed", extra={"directory": path.name})
            shutil.rmtree(path)

    def _publish(self, directory: Path, manifest: Manifest) -> None:
        """Files, manifest and directory are on disk, then the name, then STABLE."""
        make_read_only(directory)
        content = manifest.to_bytes()
        write_durably(directory / MANIFEST_NAME, content)
        fsync_tree(directory)
        final = self.path(manifest.version)
        directory.rename(final)
        fsync_path(self.root)
        write_durably(final / STABLE_NAME, hashlib.sha256(content).hexdigest().encode())
        fsync_path(final)

    def _set_aside_if_corrupt(self, path: Path, version: int) -> list[str]:
        try:
            self.open(version)
        except CorruptVersion as error:
            aside = self.root / f"{path.name}.corrupt"
            if aside.exists():
                shutil.rmtree(aside)
            path.rename(aside)
            fsync_path(self.root)
            return [f"{path.name}: {error.message}; set aside as {aside.name}"]
        return []
