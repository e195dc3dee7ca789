"""What every benchmark writes: medians of interleaved runs, with the machine they were taken on."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Report:
    """``figures``: medians with their unit in the name; ``runs``: every single measurement behind them;
    ``ratios``: how many times longer or larger the baseline is; ``machine``: where, with which versions."""

    bench: str
    ratios: dict[str, float]
    figures: dict[str, float]
    runs: dict[str, list[float]]
    machine: dict[str, str]

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=2) + "\n")


def interleaved_seconds(
    contestants: Mapping[str, Callable[[], object]], num_runs: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each contestant by ``clock``, ``num_runs`` times in turn, after one run each that does not count."""
    for run in contestants.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(num_runs):
        for name, run in contestants.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return seconds


def medians(runs: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in runs.items()}


def describe_machine(**versions: str) -> dict[str, str]:
    """Processor, cores, load and the versions given."""
    return {
        "processor": platform.processor() or platform.machine(),
        "num_cores": str(os.cpu_count()),
        "load_1min": f"{os.getloadavg()[0]:.2f}",
        "python": platform.python_version(),
        **versions,
    }
