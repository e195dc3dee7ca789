"""The demo's report: ``report.json`` for machines, ``report.html`` (self-contained) for people."""

from __future__ import annotations

import html
import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from online_agent.demo.figures import success_figure, swap_figure
from online_agent.demo.records import Journal, Mode

PHASES = ("before", "trained", "at_change", "recovered")


@dataclass(frozen=True, slots=True)
class Gate:
    """One thing the run had to show."""

    text: str
    is_met: bool


def build_report(journal: Journal) -> dict[str, Any]:
    """All figures of the run, each from the journal; nothing is typed in."""
    report: dict[str, Any] = {"seed": journal.seed}
    modes: tuple[tuple[Mode, str], ...] = (("sampled", ""), ("greedy", "_greedy"))
    for phase in PHASES:
        for mode, suffix in modes:
            evaluation = journal.evaluations[phase, mode]
            report[f"success_{phase}{suffix}"] = round(evaluation.rate, 4)
            report[f"success_{phase}{suffix}_interval_95"] = [round(x, 4) for x in evaluation.interval]
            report[f"success_{phase}{suffix}_n"] = evaluation.num_episodes
    swaps: list[Mapping[str, Any]] = journal.facts["swaps"]
    seconds = [float(s["seconds"]) for s in swaps]
    report |= {
        "episodes_to_recover": journal.facts["episodes_to_recover"],
        "episodes_total": len(journal.accepted_ids),
        "versions_published": journal.facts["versions_published"],
        "swaps": len(swaps),
        "swaps_under_traffic": journal.facts["swaps_under_traffic"],
        "requests_total": len(journal.requests.spans),
        "requests_failed": len(journal.requests.failures),
        "requests_retried": journal.requests.num_retried,
        "requests_during_swaps": journal.requests.during([(float(s["started"]), float(s["ended"])) for s in swaps]),
        "swap_seconds_p50": round(statistics.median(seconds), 4) if seconds else None,
        "swap_seconds_max": round(max(seconds), 4) if seconds else None,
        **{
            key: journal.facts[key]
            for key in (
                "logprob_gap_max",
                "rollback_ok",
                "rollback",
                "updates",
                "change",
                "resets",
                "episodes_trained",
                "episodes_trained_twice",
                "episodes_lost",
                "episodes_dropped",
                "wall_seconds",
                "seconds_by_phase",
                "policy",
            )
        },
    }
    report["gates"] = [{"gate": g.text, "met": g.is_met} for g in gates(report)]
    return report


def gates(report: Mapping[str, Any]) -> list[Gate]:
    """What a run has to show, judged from its own figures."""
    before, trained = report["success_before"], report["success_trained"]
    change, recovered = report["success_at_change"], report["success_recovered"]
    return [
        Gate(f"training raises success by at least 0.20 ({before:.2f} → {trained:.2f})", trained >= before + 0.20),
        Gate(f"the silent change costs at least 0.25 ({trained:.2f} → {change:.2f})", change <= trained - 0.25),
        Gate(
            f"training alone recovers 0.85 of it ({recovered:.2f} of {trained:.2f})",
            recovered >= 0.85 * trained and recovered >= change + 0.25,
        ),
        Gate(f"no request failed ({report['requests_failed']})", report["requests_failed"] == 0),
        Gate(f"at least 20 swaps under traffic ({report['swaps_under_traffic']})", report["swaps_under_traffic"] >= 20),
        Gate(
            f"no episode trained twice or lost ({report['episodes_trained_twice']}, {report['episodes_lost']})",
            report["episodes_trained_twice"] == 0 and report["episodes_lost"] == 0,
        ),
        Gate("rollback serves the old content and learning goes on from it", bool(report["rollback_ok"])),
        Gate(f"all within 15 minutes ({report['wall_seconds']:.0f} s)", report["wall_seconds"] <= 900),
    ]


def write_report(journal: Journal, directory: Path) -> dict[str, Any]:
    """``report.json`` and ``report.html`` exist in ``directory``; the report is returned."""
    report = build_report(journal)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    (directory / "report.html").write_text(_page(journal, report))
    return report


def _page(journal: Journal, report: Mapping[str, Any]) -> str:
    evaluations = list(journal.evaluations.values())
    rows = "".join(
        f"<tr><td>{phase.replace('_', ' ')}</td>"
        + _cell(report, f"success_{phase}")
        + _cell(report, f"success_{phase}_greedy")
        + "</tr>"
        for phase in PHASES
    )
    checks = "".join(
        f"<li class={'met' if g['met'] else 'missed'}>{html.escape(g['gate'])}</li>" for g in report["gates"]
    )
    plain = {k: v for k, v in report.items() if not k.startswith("success_") and k not in ("gates", "policy")}
    figures = "".join(f"<tr><td>{k}</td><td>{html.escape(json.dumps(v))}</td></tr>" for k, v in plain.items())
    swaps = [float(s["seconds"]) for s in journal.facts["swaps"]]
    return PAGE.format(
        seed=journal.seed,
        policy=html.escape(str(report["policy"])),
        change=html.escape(json.dumps(report["change"])),
        checks=checks,
        rows=rows,
        success=success_figure(journal.live, journal.markers, evaluations),
        swaps=swap_figure(swaps),
        figures=figures,
    )


def _cell(report: Mapping[str, Any], key: str) -> str:
    low, high = report[f"{key}_interval_95"]
    return f"<td>{report[key]:.3f} <small>[{low:.3f}, {high:.3f}], n = {report[f'{key}_n']}</small></td>"


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>online_agent demo, seed {seed}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1080px; margin: 2em auto; padding: 0 1em; color: #222 }}
table {{ border-collapse: collapse; margin: 1em 0 }}
td, th {{ border-bottom: 1px solid #ddd; padding: .3em .8em; text-align: left }}
li.met::marker {{ content: "✓ "; color: #1e8449 }} li.missed::marker {{ content: "✗ "; color: #c0392b }}
li.missed {{ color: #c0392b }} small {{ color: #777 }} svg {{ max-width: 100%; height: auto }}
</style></head><body>
<h1>online_agent demo, seed {seed}</h1>
<p>{policy}</p>
<ul>{checks}</ul>
<h2>Success against live episodes</h2>
{success}
<p>Injected change: <code>{change}</code>. <b>at change</b> is the frozen control: the weights from before the change,
measured after it.</p>
<h2>Held-out tasks</h2>
<table><tr><th></th><th>sampled at the serving temperature</th><th>greedy</th></tr>{rows}</table>
<h2>Hot swaps</h2>
{swaps}
<h2>All figures</h2>
<table>{figures}</table>
</body></html>
"""
