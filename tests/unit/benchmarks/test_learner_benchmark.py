"""The learner's benchmark compares updates that add up the same sums, on episodes of the environment."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from benchmarks import learner
from benchmarks.learner_batch import ModelSize, num_real_tokens, recorded_episodes, write_model
from benchmarks.plain_torch import PlainTorch, gae, padded_batches
from benchmarks.report import medians
from online_agent.cli.bench import app
from online_agent.config.training import LearnerSettings
from online_agent.learner.trainer import PolicyTrainer
from online_agent.recipes import find_recipe
from tests.fakes.deepspeed_warnings import SILENCED
from tests.fakes.training_episodes import episode

pytestmark = SILENCED
SETTINGS = LearnerSettings(critic_warmup_steps=0, actor_lr=1e-3, critic_lr=1e-3)


@pytest.fixture(autouse=True)
def _restore_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("bench") / "model", ModelSize(hidden=64, num_layers=2))


def test_the_batch_has_the_lengths_and_the_shared_beginning_of_the_environment(model_dir):
    episodes = recorded_episodes(model_dir, 40)

    lengths = [len(e.token_ids) for e in episodes]
    assert 100 < min(lengths) < 150
    assert 220 < max(lengths) < 400
    assert 0.25 < sum(e.num_action_tokens for e in episodes) / sum(lengths) < 0.4
    assert len({tuple(e.token_ids[:20]) for e in episodes}) == 1


def test_log_probs_are_those_of_the_model_at_the_actions_and_nowhere_else(model_dir):
    first = recorded_episodes(model_dir, 1)[0]

    assert (first.logprobs[~first.action_mask] == 0).all()
    # A random model of 1,024 tokens is about uniform.
    assert first.logprobs[first.action_mask] == pytest.approx(-np.log(1024), abs=1.5)


def test_real_tokens_end_before_the_last_action():
    assert num_real_tokens([episode([1, 2, 3, 4, 5], [0, 0, 1, 1, 0]), episode([1, 2], [0, 1])]) == 4


def test_the_plain_loop_gives_the_worked_advantages():
    assert gae(np.array([0.2, 0.4, 0.5], np.float32), 1.0, 1.0, 0.5) == pytest.approx([0.375, 0.35, 0.5])


def test_the_plain_loop_pads_rows_in_the_order_they_came():
    rows = [episode([7] * n, [0] * (n - 1) + [1]) for n in (3, 5, 2)]

    batches = padded_batches(rows, max_tokens=10)

    assert [tuple(batch.token_ids_BT.shape) for batch in batches] == [(2, 5), (1, 2)]
    assert batches[0].attention_mask_BT.tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]


def test_learner_and_plain_torch_take_the_same_steps(model_dir):
    """At learning rates that move the weights: what differs in one update shows in the next ones."""
    episodes = recorded_episodes(model_dir, 6)
    ours, plain = PolicyTrainer(model_dir, SETTINGS, find_recipe("sao")), PlainTorch(model_dir, SETTINGS)

    reports = [learner.check_agreement(ours, plain, episodes)[1] for _ in range(3)]

    losses = [report.metrics["critic/loss"] for report in reports]
    assert losses[0] > losses[1] > losses[2]


def test_updates_that_differ_are_not_timed(model_dir):
    episodes = recorded_episodes(model_dir, 3)
    ours, plain = PolicyTrainer(model_dir, SETTINGS, find_recipe("sao")), PlainTorch(model_dir, SETTINGS)
    plain.head.bias.data += 0.1

    with pytest.raises(RuntimeError, match="differ"):
        learner.check_agreement(ours, plain, episodes)


def test_the_report_has_both_sizes_and_every_run_behind_its_medians(tmp_path, monkeypatch):
    monkeypatch.setattr(learner, "LARGER", ModelSize(hidden=64, num_layers=2))
    monkeypatch.setattr(learner, "has_trl", lambda: False)
    small = learner.measure(2, num_episodes=4, num_episodes_larger=2)
    monkeypatch.setattr(learner, "measure", lambda: small)
    path = tmp_path / "learner.json"

    result = CliRunner().invoke(app, ["learner", "--json", str(path)], catch_exceptions=False)

    assert result.exit_code == 0
    assert "vs_trl is left out" in result.output
    report = json.loads(path.read_text())
    assert set(report["ratios"]) == {"vs_plain_torch", "vs_plain_torch_64x2"}
    assert {len(values) for values in report["runs"].values()} == {2}
    figures = report["figures"]
    assert figures | medians(report["runs"]) == figures
    assert report["ratios"]["vs_plain_torch"] == figures["plain_torch_s"] / figures["learner_s"]
    assert figures["learner_tokens_per_s"] == figures["num_real_tokens"] / figures["learner_s"]
    assert figures["max_difference"] < 1e-4
    assert 0 < figures["non_pad_share"] <= 1
