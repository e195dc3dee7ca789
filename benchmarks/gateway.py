"""What a gateway adds to an engine's reply, and how many requests a second it keeps: this service against others.

All sides stand before one scripted engine, which answers after 50 ms, and get the same requests at the same times:
turns of episodes, each with its history. This service stores each turn, durably, before the end of its answer is sent.
The others do what they do: LiteLLM's proxy stores nothing, Reef's record-only recipe keeps request and answer, without
token ids.

Time added is the latency less the median latency of the engine without anything before it, at the same rate. A rate is
kept when every request is answered rightly and 99 of 100 within half a second of when they were to be sent.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from math import isfinite
from pathlib import Path

from benchmarks.proxies import sides
from benchmarks.proxies.load import Plan, Trial
from benchmarks.proxies.search import NEAR_STEP, WIDE_STEP, confirmed_rate, highest_rate
from benchmarks.proxies.sides import Side
from benchmarks.proxies.streams import holdings, wave
from benchmarks.report import Report, describe_machine, medians

RATES = (50, 100, 200)
SHARES = {"p50": 0.5, "p99": 0.99}
KEPT_WITHIN_S = 0.5
FIRST_RATE = 100.0
NUM_STREAMS, STREAMED = 1000, "add a and b"
MS = 1000.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Seconds of one trial of latency, of one step of the search, and of the rate that is kept in the end."""

    latency_s: float = 10.0
    search_s: float = 5.0
    kept_s: float = 30.0


QUICK = Lengths(latency_s=4.0, search_s=2.0, kept_s=30.0)
Progress = Callable[[str], None]


class Bench:
    """Trials of the sides, each by a fresh process that sends the load."""

    def __init__(self, running: Sequence[Side], expected: str, progress: Progress) -> None:
        self._sides = {side.name: side for side in running}
        self._expected, self._progress = expected, progress
        self._num_trials = 0

    def trial(self, name: str, rate: float, seconds: float) -> Trial:
        side = self._sides[name]
        self._num_trials += 1
        plan = Plan(side.chat_url, side.headers, sides.MODEL, self._expected, f"e{self._num_trials}", rate, seconds)
        trial = send(plan)
        found = f"{name} at {rate:.0f}/s: p50 {MS * trial.quantile(0.5):.1f} ms, p99 {MS * trial.quantile(0.99):.1f} ms"
        self._progress(f"{found}, {trial.num_errors} errors {trial.errors or ''}".rstrip())
        return trial

    def keeps(self, name: str, seconds: float) -> Callable[[float], bool]:
        return lambda rate: is_kept(self.trial(name, rate, seconds))

    def latencies(self, num_runs: int, seconds: float, rates: Sequence[int]) -> dict[str, list[float]]:
        """Milliseconds added by each side, by rate and share of the answers, run by run."""
        runs: dict[str, list[float]] = {}
        for number in range(num_runs):
            for rate in rates:
                trials = {name: self.trial(name, rate, seconds) for name in _turned(list(self._sides), number)}
                base = trials["engine"].quantile(0.5)
                for name, trial in trials.items():
                    for label, share in SHARES.items():
                        key = f"{name}_added_{label}_ms_at_{rate}"
                        runs.setdefault(key, []).append(MS * (trial.quantile(share) - base))
                    runs.setdefault(f"{name}_errors_at_{rate}", []).append(float(trial.num_errors))
        return runs

    def highest_rates(self, num_runs: int, lengths: Lengths) -> dict[str, list[float]]:
        """Requests a second, run by run, and what is kept for ``kept_s`` from the median of these down."""
        names = [name for name in self._sides if name != "engine"]
        found: dict[str, list[float]] = {name: [] for name in names}
        for number in range(num_runs):
            for name in _turned(names, number):
                last = found[name][-1] if number else 0.0
                start, step = (last, NEAR_STEP) if last else (FIRST_RATE, WIDE_STEP)
                found[name].append(highest_rate(self.keeps(name, lengths.search_s), start, step))
        runs = {f"{name}_short_rate": rates for name, rates in found.items()}
        for name in names:
            candidate = statistics.median(found[name])
            runs[f"{name}_max_rate"] = [confirmed_rate(self.keeps(name, lengths.kept_s), candidate)]
        return runs


def send(plan: Plan) -> Trial:
    """What came of the plan, sent by a process of its own."""
    command = [sys.executable, "-m", "benchmarks.proxies.load"]
    content = json.dumps(asdict(plan)).encode()
    done = subprocess.run(command, input=content, stdout=subprocess.PIPE, check=True)
    return Trial(**json.loads(done.stdout))


def is_kept(trial: Trial) -> bool:
    return not trial.num_errors and trial.quantile(0.99) <= KEPT_WITHIN_S


def ratios(figures: Mapping[str, float], rates: Sequence[int], others: Sequence[str]) -> dict[str, float]:
    """Ours over each other's: time added, its worst over the rates that both keep; rates kept.

    Above the rate that a side keeps, its time is that of its queue, and grows for as long as the trial goes on. Where
    there is no rate that both keep, it is the time at the lowest one.
    """
    found: dict[str, float] = {}
    for other in others:
        clean = [r for r in rates if _kept(figures, "ours", r) and _kept(figures, other, r)] or [min(rates)]
        for label in SHARES:
            key = f"added_{label}_ms_at"
            pairs = [(figures[f"ours_{key}_{r}"], figures[f"{other}_{key}_{r}"]) for r in clean]
            if all(isfinite(time) for pair in pairs for time in pair):  # none of a side that answered nothing
                found[f"overhead_{label}_vs_{other}"] = max(ours / theirs for ours, theirs in pairs)
        if figures[f"{other}_max_rate"]:
            found[f"max_rate_vs_{other}"] = figures["ours_max_rate"] / figures[f"{other}_max_rate"]
    return found


def _kept(figures: Mapping[str, float], side: str, rate: int) -> bool:
    return not figures[f"{side}_errors_at_{rate}"] and figures[f"{side}_added_p99_ms_at_{rate}"] <= MS * KEPT_WITHIN_S


@contextmanager
def _scratch() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="online-agent-bench-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def _opened(litellm: Path | None, reef: Path | None, progress: Progress) -> Iterator[tuple[list[Side], str]]:
    """All sides, up and ready, and the text of the scripted answer."""
    script = sides.make_script()
    with _scratch() as scratch, ExitStack() as stack:
        engine = stack.enter_context(sides.scripted_engine(script))
        running = [engine, stack.enter_context(sides.service(engine, scratch))]
        if litellm is not None:
            running.append(stack.enter_context(sides.litellm(engine, litellm, scratch)))
        if reef is not None:
            running.append(stack.enter_context(sides.reef(engine, reef, scratch)))
        progress(f"ready: {', '.join(side.name for side in running)}")
        yield running, script.text


def open_streams(num_streams: int, text: str, progress: Progress) -> dict[str, float]:
    """Streams of a token a second, all open at once on this service: how many ended rightly, and what each left."""
    with _scratch() as scratch, ExitStack() as stack:
        script = sides.make_script(token_delay_s=1.0, text=text)
        engine = stack.enter_context(sides.scripted_engine(script))
        side = stack.enter_context(sides.service(engine, scratch))
        told = [asyncio.run(wave(side, "first", num_streams, text))]
        before = holdings(side.pid).memory_bytes
        told.append(asyncio.run(wave(side, "second", num_streams, text)))
        after = holdings(side.pid).memory_bytes
    progress(
        f"{num_streams} streams, twice: {[each.num_right for each in told]} right {told[-1].errors or ''}".rstrip()
    )
    return {
        "open_streams": float(min(each.most_open for each in told)),
        "streams_right_share": min(each.num_right for each in told) / num_streams,
        "bytes_kept_a_stream": (after - before) / num_streams,
    }


def _turned(names: Sequence[str], number: int) -> list[str]:
    """Each run begins with another side, so that none always follows the same one."""
    at = number % len(names)
    return [*names[at:], *names[:at]]


def _versions(environments: Mapping[str, Path | None]) -> dict[str, str]:
    """Of each distribution, in the environment of its Python."""
    asked = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    return {
        name: subprocess.run([python, "-c", asked, name], capture_output=True, text=True, check=True).stdout.strip()
        for name, python in environments.items()
        if python is not None
    }


def measure(
    num_runs: int = 5,
    lengths: Lengths | None = None,
    litellm: Path | None = None,
    reef: Path | None = None,
    rates: Sequence[int] = RATES,
    progress: Progress = lambda line: None,
) -> Report:
    """``litellm`` and ``reef``: the Python of an environment that has it; without it that side is left out."""
    lengths = lengths or Lengths()
    with _opened(litellm, reef, progress) as (running, expected):
        bench = Bench(running, expected, progress)
        runs = bench.latencies(num_runs, lengths.latency_s, rates) | bench.highest_rates(num_runs, lengths)
    figures = medians(runs) | open_streams(NUM_STREAMS, STREAMED, progress)
    others = [side.name for side in running if side.name not in ("engine", "ours")]
    machine = describe_machine(uvicorn=version("uvicorn"), **_versions({"litellm": litellm, "reef-infra": reef}))
    return Report("gateway", ratios(figures, rates, others), figures, runs, machine)
