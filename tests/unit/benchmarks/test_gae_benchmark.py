"""The benchmark measures two functions that agree, and writes what it says."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import gae
from benchmarks.report import medians
from online_agent.cli.bench import app


@pytest.fixture(autouse=True)
def _same_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(gae, "NUM_EPISODES", 3)
    monkeypatch.setattr(gae, "NUM_TOKENS", 130)


def test_the_loop_gives_the_worked_advantages():
    mask = torch.tensor([[1, 1, 0, 0, 0, 1, 0]]).bool()
    values = torch.tensor([[0.2, 0.4, 9, 9, 9, 0.5, 9]])
    rewards = torch.tensor([[0.0, 0, 0, 0, 0, 1, 0]])
    advantages = gae.loop_over_positions(values, mask, rewards, 1.0, torch.tensor([0.5]))
    assert advantages[0].tolist() == pytest.approx([0.375, 0.35, 0, 0, 0, 0.5, 0])


@pytest.mark.usefixtures("small")
def test_the_report_holds_every_run_behind_its_medians(tmp_path):
    path = tmp_path / "new" / "gae.json"
    result = CliRunner().invoke(app, ["gae", "--json", str(path)], catch_exceptions=False)
    assert result.exit_code == 0
    report = json.loads(path.read_text())
    assert set(report) == {"bench", "ratios", "figures", "runs", "machine"}
    assert report["bench"] == "gae"
    assert {len(values) for values in report["runs"].values()} == {gae.NUM_RUNS}
    for name, median in medians(report["runs"]).items():
        assert report["figures"][name] == median
    figures = report["figures"]
    assert report["ratios"]["vs_token_loop"] == figures["loop_s"] / figures["vectorised_s"]
    assert figures["time_at_2x_tokens_over_1x"] == figures["vectorised_2x_tokens_s"] / figures["vectorised_s"]
    assert f"{report['ratios']['vs_token_loop']:.6g}" in result.output


@pytest.mark.usefixtures("small")
def test_implementations_that_differ_are_not_timed(monkeypatch):
    monkeypatch.setattr(gae, "loop_over_positions", lambda values, *_: values + 1)
    with pytest.raises(RuntimeError, match="differ by"):
        gae.measure()
