"""The pages say what the file of a bench holds, good or bad, and nothing that it does not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks import recipes, staleness
from benchmarks.live.pipeline import Pipeline
from benchmarks.live.records import Baseline, PolicyName, Results, ResultsLog, RunRecord, RunSpec
from benchmarks.live.report import build_report, read_report, write_report
from benchmarks.live.session import run_session
from online_agent.cli.bench import app
from online_agent.errors import BadInput, UnknownName

SEEDS = (0, 1, 2)
FIGURES = {
    "masked_share": 0.0123,
    "clipped_share": 0.02,
    "mean_abs_logp": 0.0456,
    "rho": 0.97,
    "staleness": 3.5,
    "seconds_per_update": 0.5,
    "effective_sample_share": 0.9,
}
HALF, MOST, FEW = "10" * 48, "1" * 80 + "0" * 16, "0" * 80 + "1" * 16


def run(
    recipe: str, seed: int, heldout: str, *, lag: int = 1, policy: str = "dense", seconds: float = 0.5
) -> RunRecord:
    return RunRecord(
        spec=RunSpec(recipe=recipe, seed=seed, lag=lag, policy=policy),  # type: ignore[arg-type]
        failure=None,
        live="0" * 100 + "1" * 100,
        heldout=heldout,
        updates=60,
        warmup_updates=2,
        swaps=60 // lag,
        figures=FIGURES | {"seconds_per_update": seconds, "mean_abs_logp": 0.01 * lag},
        seconds={"total": 75.0},
    )


@pytest.fixture
def recipes_file(tmp_path: Path) -> Path:
    policies: tuple[PolicyName, ...] = ("dense", "moe")
    results = Results([Baseline(policy=p, seed=s, heldout=FEW) for p in policies for s in SEEDS])
    for seed in SEEDS:
        results.put(run("sao", seed, HALF))
        results.put(run("dppo", seed, MOST, seconds=1.5))
        results.put(run("sat-gspo-r3", seed, HALF, policy="moe"))
        results.put(run("sat-gspo", seed, FEW, policy="moe"))
    failed = RunSpec(recipe="grpo", seed=0)
    skipped = {"trust region masks 1.000 of the tokens, above 0.5": 5}
    results.put(RunRecord(spec=failed, failure="RunFailed: the learner paused itself", live="01", skipped=skipped))
    path = tmp_path / "recipes.json"
    write_report(build_report("recipes", recipes.plan_of_sizes().described, results), path)
    return path


def rendered(path: Path, tmp_path: Path, bench: str) -> str:
    result = CliRunner().invoke(app, [bench, "--render", str(path), "--docs", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0
    return (tmp_path / f"{bench}.md").read_text()


def test_the_file_has_the_usual_parts_and_every_run(recipes_file: Path) -> None:
    report = json.loads(recipes_file.read_text())
    assert list(report) == ["bench", "ratios", "figures", "runs", "machine"]
    assert sum("run" in row for row in report["runs"]) == 13
    assert report["figures"]["sao/success_after"] == 0.5
    assert report["figures"]["grpo/failed_runs"] == 1
    assert report["ratios"] == {
        "sao/seconds_per_update_vs_reference": 1.0,
        "dppo/seconds_per_update_vs_reference": 3.0,
        "sat-gspo-r3/moe/seconds_per_update_vs_reference": 1.0,
        "sat-gspo/moe/seconds_per_update_vs_reference": 1.0,
    }
    assert "sat-gspo-r3/moe/seconds_per_update" in report["figures"]


def test_what_is_written_is_read_back(recipes_file: Path) -> None:
    report, results = read_report(recipes_file)
    again = build_report(report["bench"], report["runs"][0]["plan"], results)
    assert json.loads(json.dumps(again["runs"])) == report["runs"]
    assert again["figures"] == report["figures"]


def test_the_table_names_every_recipe_with_its_interval(recipes_file: Path, tmp_path: Path) -> None:
    page = rendered(recipes_file, tmp_path, "recipes")
    (sao,) = [line for line in page.splitlines() if line.startswith("| sao | 0.17")]
    assert "| 0.50 [0.4" in sao
    assert sao.endswith("| 0.50 | 132 (3 of 3) |")  # the 32nd success ends the first window of 64 at 0.5
    assert "| sat-gspo-r3 (MoE) |" in page
    assert "60 updates of 8" in page


def test_who_is_better_is_said_and_who_is_not_told_apart_is_not(recipes_file: Path, tmp_path: Path) -> None:
    page = rendered(recipes_file, tmp_path, "recipes")
    assert "Better than the reference by more than the interval: dppo, sat-gspo-r3 (MoE). Worse: none." in page


def test_failed_runs_are_on_the_page_with_their_reason(recipes_file: Path, tmp_path: Path) -> None:
    page = rendered(recipes_file, tmp_path, "recipes")
    assert "1 of 13 runs failed" in page
    assert "**grpo**: failed: RunFailed: the learner paused itself; skipped steps: 5 × trust region masks" in page
    assert "| grpo | – | – | – |" in page


def test_a_run_that_ends_far_below_its_seed_policy_is_named_with_its_last_success(tmp_path: Path) -> None:
    results = Results([Baseline(policy="dense", seed=s, heldout=HALF) for s in SEEDS])
    for seed in SEEDS:
        results.put(run("sao", seed, HALF))
    results.put(replace(run("grpo", 0, "0" * 80 + "1" * 16), live="1" * 30 + "0" * 170))
    write_report(build_report("recipes", recipes.plan_of_sizes().described, results), tmp_path / "recipes.json")
    page = rendered(tmp_path / "recipes.json", tmp_path, "recipes")
    assert "0 of 4 runs failed; 1 collapsed (ended below 0.5 of the seed policy's success)" in page
    assert "- **grpo**: collapsed: seed 0 fell from 0.50 to 0.17, its last live success was number 30 of 200\n" in page


def test_pictures_are_small_svg_with_text_and_the_same_each_time(recipes_file: Path, tmp_path: Path) -> None:
    rendered(recipes_file, tmp_path, "recipes")
    first = (tmp_path / "recipes.svg").read_bytes()
    assert ElementTree.fromstring(first).tag.endswith("svg")
    assert b"dppo" in first
    assert len(first) < 200_000
    rendered(recipes_file, tmp_path, "recipes")
    assert (tmp_path / "recipes.svg").read_bytes() == first


def test_the_staleness_page_follows_each_recipe_along_the_lags(tmp_path: Path) -> None:
    results = Results([Baseline(policy="dense", seed=s, heldout=FEW) for s in SEEDS])
    for seed in SEEDS:
        for lag in (1, 16):
            results.put(run("sao", seed, HALF, lag=lag))
            results.put(run("ppo-bypass", seed, HALF if lag == 1 else FEW, lag=lag))
    path = tmp_path / "staleness.json"
    write_report(build_report("staleness", staleness.plan_of_lags([1, 16]).described, results), path)
    page = rendered(path, tmp_path, "staleness")
    assert "- lag 1: apart from sao by more than the interval: none." in page
    assert "- lag 16: apart from sao by more than the interval: ppo-bypass (-0.33" in page
    assert "- sao: mean abs(log π − log μ) 0.0100 at lag 1, 0.1600 at lag 16; success differs from lag 1" in page
    assert "at: lag 16 (-0.33" in page
    assert ElementTree.fromstring((tmp_path / "staleness.svg").read_bytes()).tag.endswith("svg")


def test_every_recipe_runs_and_replay_runs_beside_the_same_without_it_on_a_mixture() -> None:
    specs = recipes.run_specs([], 2)
    dense = [s.recipe for s in specs if s.policy == "dense" and s.seed == 0]
    assert len(dense) == 20
    assert "sat-gspo-r3" not in dense
    assert [(s.recipe, s.seed) for s in specs if s.policy == "moe"] == [
        ("sat-gspo", 0), ("sat-gspo-r3", 0), ("sat-gspo", 1), ("sat-gspo-r3", 1),
    ]  # fmt: skip


def test_an_unknown_recipe_is_refused_before_anything_starts() -> None:
    with pytest.raises(UnknownName, match="nope"):
        recipes.run_specs(["sao", "nope"], 1)


def test_a_lag_after_which_nothing_would_serve_at_the_end_is_refused() -> None:
    with pytest.raises(BadInput, match="no multiple of lag 5"):
        staleness.plan_of_lags([1, 5])


def test_sixty_updates_are_the_default() -> None:
    assert recipes.plan_of_sizes().num_updates == 60


@pytest.mark.parametrize("bench", ["recipes", "staleness"])
def test_a_bench_asks_where_its_file_goes(bench: str) -> None:
    result = CliRunner().invoke(app, [bench])
    assert result.exit_code == 2
    assert "--json" in result.output


def test_a_lag_that_is_no_number_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["staleness", "--lag", "1,x", "--json", str(tmp_path / "x.json")])
    assert result.exit_code == 2


def test_a_failed_run_is_done_unless_it_is_to_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, specs = recipes.plan_of_sizes(), [RunSpec(recipe=name, seed=0) for name in ("sao", "grpo")]
    path, asked = tmp_path / "file.json", []
    log = ResultsLog(path.with_suffix(".jsonl"))
    log.open(plan.described, is_resumed=False)
    log.add(run("sao", 0, HALF))
    log.add(RunRecord(spec=specs[1], failure="RunFailed: stalled"))

    async def note(self: Pipeline, wanted: Sequence[RunSpec]) -> None:
        asked.append([spec.recipe for spec in wanted if not self._results.has_run(spec)])

    monkeypatch.setattr(Pipeline, "run", note)
    for repeats_failed in (False, True):
        run_session(
            recipes.NAME,
            specs,
            plan,
            path,
            is_resumed=True,
            repeats_failed=repeats_failed,
            console=Console(quiet=True),
        )
    assert asked == [[], ["grpo"]]


@pytest.mark.parametrize("bench", ["recipes", "staleness"])
def test_a_page_of_a_file_that_is_not_there_is_refused(bench, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a name so short that no line of the message breaks in it
    result = CliRunner().invoke(app, [bench, "--render", "none.json"])
    assert result.exit_code == 2
    assert "none.json" in result.output
