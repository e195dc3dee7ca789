"""All runs of a bench in order, on one engine: each finished one is on disk before the next begins.

The next service starts while the last one answers the held-out tasks; its processes only load then. Before its traffic
the service before is gone and the engine holds the seed again, verified. A run that fails is a record with its reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path

from benchmarks.live.engine import SharedEngine, running_engine
from benchmarks.live.records import Baseline, PolicyName, Results, ResultsLog, RunRecord, RunSpec
from benchmarks.live.run import FAILURES, LiveRun, Plan
from benchmarks.live.service import RunService
from benchmarks.live.traffic import Stalled
from online_agent.demo.client import connect
from online_agent.demo.records import RequestLog
from online_agent.recipes import find_recipe

NEVER_S = "86400"
QUIET = {
    "ONLINE_AGENT_JOBS__ENGINE_CHECK_S": NEVER_S,
    "ONLINE_AGENT_DRIFT__SCAN_INTERVAL_S": NEVER_S,
    "ONLINE_AGENT_LOG_LEVEL": "warning",
}
"""Between runs the engine is put back here, and the world does not change: looking for either only costs time."""
FIRST_UIDS = ("20001", "20201")
"""Two services overlap for a moment; the sandboxes of each have users of their own."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The model that all runs of a policy start from, and what its engine needs besides."""

    model_dir: Path
    engine_args: tuple[str, ...] = ()


@dataclass(slots=True)
class Observer:
    """Whoever wants to know how it goes on."""

    on_progress: Callable[[str], None] = field(default=lambda text: None)
    on_baseline: Callable[[Baseline], None] = field(default=lambda baseline: None)
    on_run: Callable[[RunRecord], None] = field(default=lambda record: None)


class Pipeline:
    """Runs specs one after the other. ``results`` grows, and the log with it."""

    def __init__(
        self,
        plan: Plan,
        policies: Mapping[PolicyName, Policy],
        log: ResultsLog,
        results: Results,
        observer: Observer,
        work_dir: Path,
    ) -> None:
        self._plan, self._policies, self._log, self._results = plan, policies, log, results
        self._observer, self._work_dir = observer, work_dir
        self._first_uids: Iterator[str] = cycle(FIRST_UIDS)
        self._num_services = 0
        self._next: RunService | None = None

    async def run(self, specs: Sequence[RunSpec]) -> None:
        """Every spec that has no record yet has one. Raises EngineUnavailable when the engine does not start."""
        todo = [spec for spec in specs if not self._results.has_run(spec)]
        for policy in dict.fromkeys(spec.policy for spec in todo):
            await self._run_policy(policy, [spec for spec in todo if spec.policy == policy])

    async def _run_policy(self, policy: PolicyName, specs: Sequence[RunSpec]) -> None:
        remaining = list(specs)
        while remaining:
            async with AsyncExitStack() as stack:
                self._observer.on_progress("starting the engine")
                made = self._policies[policy]
                engine = await stack.enter_async_context(
                    running_engine(made.model_dir, self._work_dir / f"engine-{policy}", made.engine_args)
                )
                stack.push_async_callback(self._drop_next)
                while remaining and engine.is_running:
                    spec = remaining.pop(0)
                    await self._one(engine, spec, remaining[0] if remaining else None)

    async def _one(self, engine: SharedEngine, spec: RunSpec, following: RunSpec | None) -> None:
        started = time.monotonic()
        service = self._next or self._launch(engine, spec)
        self._next = None
        try:
            record = await self._play(engine, service, spec, following)
        finally:
            await service.close()
        total = round(time.monotonic() - started, 2)
        record = replace(record, seconds={**record.seconds, "total": total})
        self._results.put(record)
        self._log.add(record)
        self._observer.on_run(record)

    async def _play(
        self, engine: SharedEngine, service: RunService, spec: RunSpec, following: RunSpec | None
    ) -> RunRecord:
        say = self._observer.on_progress
        say(f"{spec.label} · starting the service")
        started = time.monotonic()
        try:
            running = await service.ready()
            restored_s = await engine.hold_seed(service.seed)
        except FAILURES as error:
            return RunRecord(spec=spec, failure=_reason(error))
        async with connect(running.url, running.key, RequestLog()) as api:
            group_size = find_recipe(spec.recipe).group_size
            run = LiveRun(self._plan, spec, group_size, api, lambda text: say(f"{spec.label} · {text}"))
            run.seconds |= {"waited_for_start": time.monotonic() - started, "start": service.start_seconds}
            run.seconds["seed_restored"] = restored_s
            try:
                await self._measure_seed(run, spec)
                await run.train()
                self._launch_next(engine, following)
                say(f"{spec.label} · held-out tasks")
                await run.evaluate()
                return await run.record(None)
            except FAILURES as error:
                self._launch_next(engine, following)
                words = service.learners_last_words() if isinstance(error, Stalled) else ""
                return await self._record_of_failure(run, spec, f"{_reason(error)} {words}".strip())

    async def _measure_seed(self, run: LiveRun, spec: RunSpec) -> None:
        if self._results.baseline(spec.policy, spec.seed) is not None:
            return
        self._observer.on_progress(f"seed {spec.seed} · the untouched policy on held-out tasks")
        baseline = Baseline(policy=spec.policy, seed=spec.seed, heldout=await run.measure_seed())
        self._results.baselines.append(baseline)
        self._log.add(baseline)
        self._observer.on_baseline(baseline)

    async def _record_of_failure(self, run: LiveRun, spec: RunSpec, failure: str) -> RunRecord:
        try:
            return await run.record(failure)
        except FAILURES as error:
            return RunRecord(spec=spec, failure=f"{failure}; then the service could not tell more: {_reason(error)}")

    def _launch_next(self, engine: SharedEngine, following: RunSpec | None) -> None:
        if following is not None and self._next is None:
            self._next = self._launch(engine, following)

    def _launch(self, engine: SharedEngine, spec: RunSpec) -> RunService:
        self._num_services += 1
        plan = self._plan
        env = {
            **QUIET,
            **engine.environment,
            "ONLINE_AGENT_SANDBOX__FIRST_UID": next(self._first_uids),
            "ONLINE_AGENT_LEARNER__RECIPE": spec.recipe,
            "ONLINE_AGENT_LEARNER__SEED": str(spec.seed),
            "ONLINE_AGENT_LEARNER__BATCH_EPISODES": str(plan.batch_episodes),
            # Skipped steps are counted; they do not end a run.
            "ONLINE_AGENT_LEARNER__MAX_SKIPPED_IN_A_ROW": str(plan.num_updates + 1),
            "ONLINE_AGENT_LEARNER__MAX_STALENESS_VERSIONS": str(plan.max_staleness(spec.lag)),
            "ONLINE_AGENT_WEIGHTS__KEEP_VERSIONS": str(plan.max_staleness(spec.lag) + plan.batch_episodes),
            "ONLINE_AGENT_WEIGHTS__PUBLISH_EVERY_VERSIONS": str(spec.lag),
        }
        service = RunService(
            self._work_dir / f"service-{self._num_services}", self._policies[spec.policy].model_dir, env
        )
        service.launch()
        return service

    async def _drop_next(self) -> None:
        if self._next is not None:
            await self._next.close()
            self._next = None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[-600:]}"
