"""The learner process under DeepSpeed's own launcher: the way to several GPUs and several machines."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from online_agent.supervisor.readiness import ready_file
from online_agent.types import EpisodeStatus, StepStatus
from tests.fakes.learner import BATCH, new_workplace
from tests.fakes.tiny_model import write_tiny_model

LAUNCHER = Path(sys.executable).with_name("deepspeed")
STEP_TIMEOUT_S = 200.0
EXIT_TIMEOUT_S = 60.0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def place(tmp_path):
    made = new_workplace(tmp_path / "data", write_tiny_model(tmp_path / "model", scale=0.05))
    made.add_episodes(BATCH)
    yield made
    made.db.close()


@pytest.fixture
def launched(place, tmp_path):
    """Two ranks of the learner process on this machine, and what they print."""
    config = tmp_path / "config.toml"
    config.write_text(
        f'data_dir = "{place.settings.data_dir}"\n'
        f'[broker]\nurl = "redis://127.0.0.1:{free_port()}"\n'
        f"[learner]\nbatch_episodes = {BATCH}\ncritic_warmup_steps = 1\n"
    )
    command = [
        str(LAUNCHER),
        *("--num_accelerators", "2", "--master_port", str(free_port()), "--no_local_rank"),
        *("--module", "online_agent.cli.main", "learn"),
    ]
    environment = {"ONLINE_AGENT_CONFIG": str(config), "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    with (tmp_path / "output").open("w") as output:
        process = subprocess.Popen(
            command, env=os.environ | environment, cwd=tmp_path, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            for each in [*psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []:
                each.kill()
            process.kill()
            process.wait()


def committed(place):
    with place.db.reading() as tx:
        return [step.version for step in tx.steps.last(5) if step.status is StepStatus.COMMITTED]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("deepspeed", path=str(LAUNCHER.parent)) is None, reason="no launcher beside Python")
def test_two_ranks_under_the_launcher_train_a_step_and_leave_when_rank_0_is_told(place, launched, tmp_path):
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while not committed(place):
        assert launched.poll() is None, (tmp_path / "output").read_text()[-3000:]
        assert time.monotonic() < deadline, (tmp_path / "output").read_text()[-3000:]
        time.sleep(0.2)

    os.kill(int(ready_file(place.settings.data_dir, "learner").read_text()), signal.SIGTERM)

    assert launched.wait(EXIT_TIMEOUT_S) == 0
    assert committed(place) == [1]
    place.weights.open(1)
    with place.db.reading() as tx:
        assert tx.episodes.counts_by_status()[EpisodeStatus.TRAINED] == BATCH
