"""A bench of whole runs as a person sees it: what goes on, what came out, and how long it will still take."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.live.pipeline import Observer, Pipeline
from benchmarks.live.policies import seed_policies
from benchmarks.live.records import Baseline, Results, ResultsLog, RunRecord, RunSpec
from benchmarks.live.report import build_report, write_report
from benchmarks.live.run import Plan
from benchmarks.live.statistics import rate
from online_agent.errors import OnlineAgentError


class Interrupted(OnlineAgentError):
    """Somebody stopped the bench."""

    code = "interrupted"


def run_session(
    bench: str,
    specs: Sequence[RunSpec],
    plan: Plan,
    path: Path,
    *,
    is_resumed: bool,
    repeats_failed: bool = False,
    console: Console,
) -> dict[str, Any]:
    """Every spec was run, or had been before; the report is in ``path``, each run was in its log at once.

    ``repeats_failed``: runs that failed count as not done; what they said before stays in the log.
    Raises BadInput when the log holds runs of another plan, Interrupted when a signal ended it.
    """
    described = plan.described
    log = ResultsLog(path.with_suffix(".jsonl"))
    results = log.open(described, is_resumed=is_resumed)
    if repeats_failed:
        results.runs = [run for run in results.runs if run.failure is None]
    with tempfile.TemporaryDirectory(prefix="online-agent-bench-") as work_dir, console.status("") as status:
        observer = _Narrator(console, status.update, results, specs)
        policies = seed_policies((spec.policy for spec in specs), Path(work_dir))
        pipeline = Pipeline(plan, policies, log, results, observer, Path(work_dir))
        try:
            asyncio.run(_until_signal(pipeline, specs))
        except (asyncio.CancelledError, KeyboardInterrupt) as error:
            num_done = sum(map(results.has_run, specs))
            raise Interrupted(f"stopped after {num_done} of {len(specs)} runs; --resume goes on") from error
    report = build_report(bench, described, results)
    write_report(report, path)
    return report


async def _until_signal(pipeline: Pipeline, specs: Sequence[RunSpec]) -> None:
    """SIGTERM ends it like Ctrl-C does: processes are stopped, what was measured stays."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await pipeline.run(specs)


class _Narrator(Observer):
    def __init__(
        self, console: Console, show: Callable[[str], None], results: Results, specs: Sequence[RunSpec]
    ) -> None:
        self._console, self._results, self._specs = console, results, specs
        self._num_before = self._num_done
        self._started = time.monotonic()
        if self._num_before:
            console.print(f"{self._num_before} of {len(specs)} runs were done before")
        super().__init__(on_progress=show, on_baseline=self._baseline, on_run=self._run)

    @property
    def _num_done(self) -> int:
        return sum(map(self._results.has_run, self._specs))

    def _baseline(self, baseline: Baseline) -> None:
        text = f"{baseline.policy} policy, seed {baseline.seed}: {rate(baseline.heldout):.2f} before any update"
        self._console.print(text, highlight=False)

    def _run(self, record: RunRecord) -> None:
        num_done, num_specs = self._num_done, len(self._specs)
        mean_s = (time.monotonic() - self._started) / (num_done - self._num_before)
        left_min = mean_s * (num_specs - num_done) / 60
        self._console.print(
            f"{_outcome(record)} · {record.seconds.get('total', 0.0):.0f} s · "
            f"{num_done} of {num_specs}, about {left_min:.0f} min left",
            highlight=False,
            soft_wrap=True,
        )


def _outcome(record: RunRecord) -> str:
    if record.failure is not None:
        return f"✗ {record.spec.label} · failed after {record.updates} updates: {record.failure}"
    updates = f"{record.updates} updates" + (f", {sum(record.skipped.values())} skipped" if record.skipped else "")
    finite = f" · not finite: {', '.join(record.non_finite)}" if record.non_finite else ""
    return f"✓ {record.spec.label} · {rate(record.heldout):.2f} after {updates}{finite}"
