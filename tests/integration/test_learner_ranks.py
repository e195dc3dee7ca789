"""Two ranks on gloo do what one does, at every ZeRO stage and for every kind of recipe."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from online_agent.config.training import LearnerSettings
from tests.fakes.learner_rank import ORIGIN, RUNS, STAGES
from tests.fakes.tiny_model import write_tiny_model

REPOSITORY = Path(__file__).parents[2]
RUN_TIMEOUT_S = 250.0
LEARNER_FILES = ("critic.safetensors", "actor_optimizer.safetensors", "critic_optimizer.safetensors")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run_ranks(world_size, model_dir, out_dir):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(world_size):
        launched = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(world_size),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "tests.fakes.learner_rank", str(model_dir), str(out_dir)]
        processes.append(subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, **launched}))
    try:
        assert [process.wait(RUN_TIMEOUT_S) for process in processes] == [0] * world_size
    finally:
        for process in processes:
            process.kill()
    return out_dir


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What one rank and what two ranks left behind."""
    directory = tmp_path_factory.mktemp("ranks")
    model_dir = write_tiny_model(directory / "model", scale=0.05)
    return {n: run_ranks(n, model_dir, directory / str(n)) for n in (1, 2)}


def metrics(out_dir, run):
    """Per step, what was measured; keys that do not apply to the recipe are left out."""
    steps = json.loads((out_dir / run / "metrics.json").read_text())
    return [{key: value for key, value in step.items() if value is not None} for step in steps]


def gradient(out_dir, run, network):
    """The first step's gradient, clipped: the first moment after one update is a tenth of it."""
    moments = load_file(out_dir / run / "first" / "learner" / f"{network}_optimizer.safetensors")
    parts = [moments[name].flatten() for name in sorted(moments) if name.startswith("exp_avg.")]
    return torch.cat(parts).double() * 10


@pytest.mark.parametrize("run", list(RUNS))
def test_two_ranks_have_the_losses_of_one(ranks, run):
    """Shares are unequal and one rank has a filler micro-batch."""
    one, two = (metrics(ranks[n], run) for n in (1, 2))

    assert one[0]["actor/grad_norm"] > 0
    assert two[0] == pytest.approx(one[0], rel=1e-5, abs=1e-8)
    for ours, theirs in zip(two, one, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("run", list(RUNS))
def test_two_ranks_have_the_gradient_of_one(ranks, run):
    for network in ["actor"] if RUNS[run].recipe.critic is None else ["actor", "critic"]:
        one, two = (gradient(ranks[n], run, network) for n in (1, 2))

        assert one.norm() > 1e-3, network
        assert (two - one).norm() / one.norm() < 1e-5, network


@pytest.mark.parametrize("run", list(RUNS))
def test_two_ranks_end_with_the_weights_and_moments_of_one(ranks, run):
    """To a twentieth of one step: where a gradient is near AdamW's epsilon, its rounding shows in the direction."""
    tolerance = LearnerSettings().actor_lr / 20
    files = ["serving/model.safetensors", "learner/actor_optimizer.safetensors"]
    if RUNS[run].recipe.critic is not None:
        files += ["learner/critic.safetensors", "learner/critic_optimizer.safetensors"]
    for file in files:
        expected, got = (load_file(ranks[n] / run / "last" / file) for n in (1, 2))
        for name, tensor in expected.items():
            torch.testing.assert_close(got[name], tensor, rtol=0, atol=tolerance, msg=f"{file} {name}")


def served_hash(directory):
    """What a version's content hash is made of: the hash of the file of served tensors."""
    return hashlib.sha256((directory / "serving" / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("run", list(STAGES.values()))
def test_one_state_has_one_hash_at_every_zero_stage(ranks, world_size, run):
    """Restored at another stage and exported again: weights and moments are the same bits."""
    origin, again = ranks[world_size] / ORIGIN / "last", ranks[world_size] / run / "again"

    assert served_hash(again) == served_hash(origin)
    for file in LEARNER_FILES:
        assert (again / "learner" / file).read_bytes() == (origin / "learner" / file).read_bytes(), file


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("stage", [1, 3])
def test_the_same_steps_end_with_the_same_bits_at_every_zero_stage(ranks, world_size, stage):
    """Several micro-batches a rank, gradients that are clipped, and a critic that ranks cannot share evenly."""
    second, other = (ranks[world_size] / STAGES[each] for each in (2, stage))

    assert metrics(other, ".") == metrics(second, ".")
    assert served_hash(other / "last") == served_hash(second / "last") != served_hash(second / "first")
    for file in LEARNER_FILES:
        assert (other / "last/learner" / file).read_bytes() == (second / "last/learner" / file).read_bytes(), file


def test_sat_takes_its_quantile_over_the_tokens_of_both_ranks(ranks):
    thresholds = [[step["sat/threshold"] for step in metrics(ranks[n], "sat-grpo")] for n in (1, 2)]

    assert min(thresholds[0]) > 0
    assert thresholds[1] == pytest.approx(thresholds[0], rel=1e-5)
