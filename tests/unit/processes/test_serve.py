"""The HTTP process: thousands of streams whatever shell it was started from, short pauses, an exit code that tells."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from online_agent.processes.serve import OPEN_FILES, allow_many_files, hold_pauses_short


@pytest.fixture
def hard() -> Iterator[int]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_low_limit_of_open_files_is_raised_as_far_as_allowed(hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    allow_many_files()
    allowed = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (allowed, hard)


def test_a_limit_that_is_high_enough_stays(hard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("online_agent.processes.serve.OPEN_FILES", 512)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
    allow_many_files()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1000, hard)


@pytest.fixture
def pauses() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


@pytest.mark.usefixtures("pauses")
def test_what_is_loaded_is_left_out_of_every_collection() -> None:
    num_before = len(gc.get_objects())
    hold_pauses_short()
    assert gc.get_freeze_count() > num_before / 2
    assert len(gc.get_objects()) < num_before / 10


def test_a_server_that_cannot_start_says_why_and_exits_with_a_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "online_agent.cli.main", "serve"]
    environment = {**os.environ, "ONLINE_AGENT_DATA_DIR": str(tmp_path), "ONLINE_AGENT_API__PORT": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    log = tmp_path / "logs" / "api.log"
    assert (done.returncode, done.stderr) == (3, f"the service did not start; {log} says why\n")
    assert "engine.url is empty" in log.read_text()
