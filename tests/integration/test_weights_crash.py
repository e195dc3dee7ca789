"""C16: the trainer is killed at every point of writing version 9, or its disk fills up for real."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from online_agent.errors import StorageFull
from online_agent.weights import WeightStore
from tests.unit.weights.conftest import TENSORS, publish, write_learner, write_model

# manifest, six files, three directories | the name | STABLE, the directory
_NUM_SYNCS = 13
_SYNCS_BEFORE_STABLE = 11


def _killed_at_sync(store: WeightStore, number: int) -> None:
    """A child writes version 9 and dies by SIGKILL when it asks for sync ``number``."""
    child = os.fork()
    if child == 0:
        real_fsync, calls = os.fsync, iter(range(1, 100))

        def fsync(descriptor: int) -> None:
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            real_fsync(descriptor)

        os.fsync = fsync
        try:
            publish(store, 9)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == (-signal.SIGKILL if number <= _NUM_SYNCS else 0)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("number", range(1, _NUM_SYNCS + 2))
def test_a_writer_killed_at_any_sync_leaves_version_8_in_charge(tmp_path: Path, number: int) -> None:
    store = WeightStore(tmp_path / "weights")
    publish(store, 8)
    _killed_at_sync(store, number)
    if number <= _SYNCS_BEFORE_STABLE:
        assert store.latest_stable() == 8
        (line,) = store.clean()
        assert line in ("v000009.tmp: half-written, removed", "v000009: half-written, removed")
        assert publish(store, 9).manifest.version == 9
    elif store.latest_stable() == 8:  # STABLE was there without its content: the version is set aside
        assert store.clean()[0].startswith("v000009: version 9: manifest.json was changed")
        assert publish(store, 9).manifest.version == 9
    else:
        assert store.latest_stable() == 9
        assert store.clean() == []
    assert store.open(8).manifest.version == 8


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount_point)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting a tmpfs needs root")
    yield mount_point
    subprocess.run(["umount", str(mount_point)], check=True)


def test_a_disk_that_is_full_publishes_nothing_and_gives_its_space_back(small_disk: Path) -> None:
    store = WeightStore(small_disk / "weights")
    publish(store, 8)
    free = store.free_bytes()
    big = {**TENSORS, "model.big": np.zeros(400_000, np.float32)}

    def write() -> None:
        with store.writer(9, parent=8, step=9) as directory:
            write_learner(directory / "learner")
            write_model(directory / "serving", big)

    with pytest.raises(StorageFull, match="no space left while writing version 9"):
        write()
    assert os.listdir(store.root) == ["v000008"]
    assert store.free_bytes() == free
    assert store.latest_stable() == 8
    assert publish(store, 9).manifest.version == 9
