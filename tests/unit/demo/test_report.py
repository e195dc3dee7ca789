import json
from pathlib import Path
from typing import Any

import pytest

from online_agent.demo.records import Evaluation, Journal, LiveEpisode
from online_agent.demo.report import build_report, gates, write_report


@pytest.fixture
def journal() -> Journal:
    """A run that meets every gate: 0.50 → 0.75 → 0.40 → 0.70."""
    journal = Journal(seed=3)
    for phase, successes in {"before": 100, "trained": 150, "at_change": 80, "recovered": 140}.items():
        journal.evaluations[phase, "sampled"] = Evaluation(phase, "sampled", 200, successes, 1, 0, 10)
        journal.evaluations[phase, "greedy"] = Evaluation(phase, "greedy", 100, successes // 2, 1, 200, 10)
    journal.live = [LiveEpisode(f"e{i}", True, 1) for i in range(20)]
    journal.accepted_ids = {f"e{i}" for i in range(20)}
    journal.requests.spans = [(float(i), i + 1.0) for i in range(20)]
    swaps = [{"from": i, "to": i + 1, "started": i + 0.5, "ended": i + 0.52, "seconds": 0.02} for i in range(20)]
    journal.facts = {
        "swaps": swaps,
        "swaps_under_traffic": 20,
        "episodes_to_recover": 640,
        "versions_published": 20,
        "logprob_gap_max": 1e-5,
        "rollback_ok": True,
        "rollback": {"target": 20},
        "updates": {"committed": 20, "skipped": 0},
        "change": {"kind": "rename_tool"},
        "resets": ["rollback"],
        "episodes_trained": 20,
        "episodes_trained_twice": 0,
        "episodes_lost": 0,
        "episodes_dropped": {},
        "wall_seconds": 700.0,
        "seconds_by_phase": {},
        "policy": "shipped",
    }
    return journal


def test_rates_and_swap_figures_come_from_the_journal(journal: Journal) -> None:
    report = build_report(journal)
    assert report["success_before"] == 0.5
    assert report["success_trained_greedy"] == 0.75
    assert report["swap_seconds_p50"] == pytest.approx(0.02)
    assert report["requests_during_swaps"] == 20
    low, high = report["success_before_interval_95"]
    assert low == pytest.approx(0.4314, abs=1e-3)
    assert high == pytest.approx(0.5686, abs=1e-3)


def test_a_run_that_shows_everything_meets_every_gate(journal: Journal) -> None:
    assert all(g["met"] for g in build_report(journal)["gates"])


@pytest.mark.parametrize(
    ("change", "gate"),
    [
        ({"success_trained": 0.69}, "training raises"),
        ({"success_at_change": 0.51}, "silent change"),
        ({"success_recovered": 0.63}, "recovers"),
        ({"requests_failed": 1}, "no request failed"),
        ({"swaps_under_traffic": 19}, "20 swaps"),
        ({"episodes_lost": 1}, "trained twice or lost"),
        ({"episodes_trained_twice": 1}, "trained twice or lost"),
        ({"rollback_ok": False}, "rollback"),
        ({"wall_seconds": 901.0}, "15 minutes"),
    ],
)
def test_each_gate_can_fail(journal: Journal, change: dict[str, Any], gate: str) -> None:
    missed = [g.text for g in gates(build_report(journal) | change) if not g.is_met]
    assert any(gate in text for text in missed)


def test_the_page_is_self_contained_and_escapes_what_it_shows(journal: Journal, tmp_path: Path) -> None:
    journal.facts["policy"] = "<script>alert(1)</script>"
    report = write_report(journal, tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["seed"] == report["seed"] == 3
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert "src=" not in page.replace("xlink", "")
    assert page.count("<svg") == 2
