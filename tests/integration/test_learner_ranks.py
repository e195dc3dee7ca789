"""Two ranks on gloo do what one does."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.fakes.tiny_model import write_tiny_model

REPOSITORY = Path(__file__).parents[2]
RUN_TIMEOUT_S = 250.0


def run_ranks(world_size, model_dir, out_dir):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    out_dir.mkdir()
    processes = []
    for rank in range(world_size):
        launched = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(world_size),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
        }
        command = [sys.executable, "-m", "tests.fakes.learner_rank", str(model_dir), str(out_dir)]
        processes.append(subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, **launched}))
    try:
        assert [process.wait(RUN_TIMEOUT_S) for process in processes] == [0] * world_size
    finally:
        for process in processes:
            process.kill()
    return json.loads((out_dir / "metrics.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_ranks_take_the_steps_of_one(tmp_path):
    """Losses, gradient norms, weights and moments agree to 1e-5; shares are unequal and micro-batches padded out."""
    model_dir = write_tiny_model(tmp_path / "model", scale=0.05)

    one = run_ranks(1, model_dir, tmp_path / "one")
    two = run_ranks(2, model_dir, tmp_path / "two")

    for ours, theirs in zip(two, one, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    for file in ("serving/model.safetensors", "learner/critic.safetensors", "learner/actor_optimizer.safetensors"):
        expected, got = load_file(tmp_path / "one" / file), load_file(tmp_path / "two" / file)
        for name, tensor in expected.items():
            torch.testing.assert_close(got[name], tensor, rtol=0, atol=1e-5, msg=f"{file} {name}")
