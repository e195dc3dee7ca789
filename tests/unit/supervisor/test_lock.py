"""Two supervisors never run one data directory; a dead one blocks nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from online_agent.errors import Conflict
from online_agent.supervisor.down import stop
from online_agent.supervisor.lock import DataDirLock, running_pid

HOLDER = """
import signal, sys, time
from pathlib import Path
from online_agent.supervisor.lock import DataDirLock
stopping = []
signal.signal(signal.SIGTERM, lambda *_: stopping.append(1))
with DataDirLock(Path(sys.argv[1])):
    print("held", flush=True)
    while not stopping:
        time.sleep(0.02)
"""


def start_holder(data_dir: Path) -> subprocess.Popen[bytes]:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(data_dir)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


def finish(holder: subprocess.Popen[bytes]) -> None:
    if holder.poll() is None:
        holder.kill()
    holder.wait()
    assert holder.stdout is not None
    holder.stdout.close()


def test_a_second_one_is_refused_and_the_first_is_named(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    try:
        assert running_pid(tmp_path) == holder.pid
        with pytest.raises(Conflict, match=f"process {holder.pid}"), DataDirLock(tmp_path):
            pass
    finally:
        finish(holder)


def test_a_killed_holder_blocks_nobody(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    os.kill(holder.pid, signal.SIGKILL)
    finish(holder)
    assert running_pid(tmp_path) is None
    with DataDirLock(tmp_path):
        pass


def test_two_data_directories_are_independent(tmp_path: Path) -> None:
    with DataDirLock(tmp_path / "a"), DataDirLock(tmp_path / "b"):
        pass
    assert running_pid(tmp_path / "a") is None


def test_down_stops_the_holder_and_names_it(tmp_path: Path) -> None:
    holder = start_holder(tmp_path)
    try:
        assert stop(tmp_path, 10.0) == holder.pid
        assert holder.wait(10) == 0
    finally:
        finish(holder)


def test_down_with_nothing_running_says_so(tmp_path: Path) -> None:
    assert stop(tmp_path, 1.0) is None
