"""One run: live traffic while the recipe learns, then the held-out tasks under what it learned."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.live.records import RunRecord, RunSpec
from benchmarks.live.statistics import is_warmup, non_finite_metrics, step_figures
from benchmarks.live.traffic import ENDED, LiveTraffic, State, measure_heldout, settle
from online_agent.demo.client import Api, ApiFailure
from online_agent.errors import OnlineAgentError

PAGE = 500
MAX_STALENESS = 8
FAILURES = (OnlineAgentError, ApiFailure, OSError)


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of each run. ``max_open``: episodes in flight and waiting together."""

    num_episodes: int
    batch_episodes: int
    num_heldout: int
    max_open: int
    heldout_concurrency: int = 48
    stall_s: float = 90.0

    @property
    def num_updates(self) -> int:
        return self.num_episodes // self.batch_episodes

    @property
    def described(self) -> dict[str, Any]:
        """What runs must share to be compared."""
        return {
            "num_episodes": self.num_episodes,
            "batch_episodes": self.batch_episodes,
            "num_heldout": self.num_heldout,
            "max_open": self.max_open,
            "max_staleness_at_lag_1": self.max_staleness(1),
        }

    def max_staleness(self, lag: int) -> int:
        """Versions behind which an episode is dropped: the service's own bound, on top of what the lag adds."""
        return MAX_STALENESS + 2 * (lag - 1)


class LiveRun:
    """``play`` does everything; ``record`` says what came out, also after a failure."""

    def __init__(
        self, plan: Plan, spec: RunSpec, group_size: int | None, api: Api, on_progress: Callable[[str], None]
    ) -> None:
        self._plan, self._spec, self._api, self._on_progress = plan, spec, api, on_progress
        self._traffic = LiveTraffic(api, seed=spec.seed, group_size=group_size, max_open=plan.max_open)
        self._ended: set[int] = set()
        self._heldout = ""
        self.seconds: dict[str, float] = {}

    async def measure_seed(self) -> str:
        """The seed policy on the held-out tasks, before any update."""
        with self._timed("before"):
            return await self._measure(0)

    async def train(self) -> None:
        """All updates were tried, each committed or skipped. Raises RunFailed, ApiFailure."""
        with self._timed("traffic"):
            await self._traffic.until(self._is_done, self._plan.stall_s)

    async def evaluate(self) -> None:
        """The newest weights were measured on the held-out tasks. Raises RunFailed, ApiFailure."""
        with self._timed("heldout"):
            version = await settle(self._api, self._spec.lag)
            self._heldout = await self._measure(version)
            await self._traffic.drained()

    async def record(self, failure: str | None) -> RunRecord:
        """Everything the service can still tell. Raises ApiFailure when it cannot tell anything."""
        await self._traffic.stop()
        steps = [s async for s in self._api.pages("/v1/training/steps", limit=PAGE)]
        committed = [s["metrics"] for s in reversed(steps) if s["status"] == "committed"]
        events = [e async for e in self._api.pages("/v1/events", limit=PAGE)]
        episodes = [e async for e in self._api.pages("/v1/episodes", limit=PAGE) if e["split"] == "train"]
        graded = sorted((e for e in episodes if e["verdict"] is not None), key=lambda e: e["finished_at"])
        return RunRecord(
            spec=self._spec,
            failure=failure,
            live="".join("1" if e["verdict"]["is_success"] else "0" for e in graded)[: self._plan.num_episodes],
            heldout=self._heldout,
            updates=len(committed),
            warmup_updates=sum(is_warmup(m) for m in committed),
            skipped=_counts(s["reason"] for s in steps if s["status"] == "skipped"),
            dropped=_counts(e["drop_reason"] for e in episodes if e["status"] == "dropped"),
            failed_episodes=sum(e["status"] == "failed" for e in episodes),
            resets=_counts(e["data"]["cause"] for e in events if e["kind"] == "ewma_reset"),
            swaps=sum(e["kind"] == "swap" for e in events),
            rejected_versions=sum(e["kind"] == "version_rejected" for e in events),
            non_finite=non_finite_metrics(committed),
            figures={name: _rounded(value) for name, value in step_figures(committed).items()},
            seconds={name: round(value, 2) for name, value in self.seconds.items()},
        )

    async def _measure(self, version: int) -> str:
        plan = self._plan
        return await measure_heldout(
            self._api,
            seed=self._spec.seed,
            version=version,
            num_episodes=plan.num_heldout,
            concurrency=plan.heldout_concurrency,
        )

    def _is_done(self, state: State) -> bool:
        self._ended.update(s["step"] for s in state["steps"] if s["status"] in ENDED)
        self._on_progress(f"update {len(self._ended)}/{self._plan.num_updates}")
        return len(self._ended) >= self._plan.num_updates

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[what] = time.monotonic() - started


def _counts(names: Any) -> dict[str, int]:
    return dict(sorted(Counter(str(name) for name in names).items()))


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
