"""The main job, start to end, through the HTTP API only.

start everything → measure the untouched policy → live traffic, SAO trains and swaps → measure → inject a silent
change → measure the frozen weights → live traffic, it recovers by training alone → measure → undo the change, roll
back to the version from before it → it serves again and learning goes on from it → report.

Every evaluation draws fresh held-out tasks; the number of updates is fixed, never a stop at first passing.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from online_agent.adaptation.curve import RECOVERED_SHARE
from online_agent.demo.client import Api, ApiFailure, connect
from online_agent.demo.records import Journal, episodes_to_recover
from online_agent.demo.report import write_report
from online_agent.demo.service import running_service
from online_agent.demo.summary import print_summary
from online_agent.demo.traffic import Evaluator, Progress, Traffic
from online_agent.errors import BadInput, OnlineAgentError

ENV = "bug_repair"
POLICY = "the shipped 0.7M seed policy (rebuild it with `online-agent seed-policy`)"
TASKS_PER_SEED = 1_000_000  # seeds never share a task
RECOVERY_WINDOW = 128
SETTLE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of a run. Success is only comparable between runs of the same plan."""

    seed: int = 0
    updates_before_change: int = 42
    updates_after_change: int = 50
    updates_after_rollback: int = 3
    num_sampled: int = 200
    num_greedy: int = 100
    concurrency: int = 32
    change_kind: str = "rename_tool"
    change_params: tuple[tuple[str, str], ...] = (("tool", "edit_file"), ("to", "patch_file"))


class Demo:
    """One run: the phases in order, each shown while it goes on and timed."""

    def __init__(self, plan: Plan, api: Api, journal: Journal, console: Console) -> None:
        self.plan, self.api, self.journal, self.console = plan, api, journal, console
        first = plan.seed * TASKS_PER_SEED
        self.traffic = Traffic(api, journal, ENV, plan.concurrency, first)
        self.evaluator = Evaluator(api, journal, ENV, plan.concurrency, first)
        self.seconds: dict[str, float] = {}
        self._last_event = 0

    async def run(self) -> None:
        await self._evaluate("before")
        await self._train("training", self.plan.updates_before_change)
        await self._evaluate("trained")
        trained_version = (await self.api.get("/v1/training"))["serving_version"]
        await self.api.post(f"/v1/weights/{trained_version}/pin")
        change = await self._inject_change()
        await self._evaluate("at_change")
        change_at = len(self.journal.live)
        await self._train("adapting", self.plan.updates_after_change)
        await self._evaluate("recovered")
        self._note_recovery(change_at)
        await self.api.delete(f"/v1/changes/{change['id']}")
        self.journal.mark("change", "change undone")
        await self._roll_back(trained_version)
        await self._take_stock()

    async def _evaluate(self, name: str) -> None:
        label = f"held-out tasks, {name.replace('_', ' ')}"
        async with self._phase(label) as progress:
            await self._pause_training()
            sampled = await self.evaluator.measure(name, "sampled", self.plan.num_sampled, progress)
            greedy = await self.evaluator.measure(name, "greedy", self.plan.num_greedy, progress)
            await self.api.post("/v1/training/resume")
        low, high = sampled.interval
        self.console.print(
            f"  [bold]{sampled.rate:.2f}[/] sampled [dim][{low:.2f}, {high:.2f}], n = {sampled.num_episodes}[/]"
            f" · {greedy.rate:.2f} greedy [dim]n = {greedy.num_episodes} · version {sampled.version}[/]"
        )

    async def _pause_training(self) -> None:
        """No step is under way and the newest version serves, so that the weights stand still."""
        await self.api.post("/v1/training/pause")
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while True:
                state = await self.api.get("/v1/training")
                if state["state"] == "paused" and state["serving_version"] == state["current_version"]:
                    return
                await asyncio.sleep(0.2)

    async def _train(self, label: str, num_updates: int) -> None:
        async with self._phase(f"live traffic, {label}") as progress:
            await self.traffic.until_updates(num_updates, progress, self._read_events)

    async def _inject_change(self) -> dict[str, Any]:
        plan = self.plan
        body = {"env": ENV, "kind": plan.change_kind, "params": dict(plan.change_params), "visibility": "silent"}
        change: dict[str, Any] = await self.api.post("/v1/changes", body)
        text = f"{plan.change_kind} {' → '.join(v for _, v in plan.change_params)}"
        self.journal.mark("change", f"silent {text}")
        self.journal.facts["change"] = body
        self.console.print(f"[red]✂[/] injected a silent change over HTTP: {text}")
        return change

    def _note_recovery(self, change_at: int) -> None:
        target = RECOVERED_SHARE * self.journal.rate("trained")
        outcomes = [e.is_success for e in self.journal.live]
        self.journal.facts["episodes_to_recover"] = episodes_to_recover(outcomes, change_at, target, RECOVERY_WINDOW)

    async def _roll_back(self, target: int) -> None:
        async with self._phase(f"roll back to version {target}") as progress:
            new = (await self.api.post(f"/v1/weights/{target}/rollback"))["version"]
            self.journal.mark("rollback", f"rollback to {target}")
            old_row, new_row = [await self.api.get(f"/v1/weights/{v}") for v in (target, new)]
            served = await self.api.post("/v1/episodes", {"env": ENV, "task_id": self.traffic.next_task()}, wait="true")
            self.journal.accepted_ids.add(served["id"])
            await self.traffic.until_updates(self.plan.updates_after_rollback, progress, self._read_events)
            children = [r async for r in self.api.pages("/v1/weights", limit=500) if r["parent"] == new]
        facts = {
            "target": target,
            "new_version": new,
            "same_content": old_row["content_hash"] == new_row["content_hash"],
            "answered_by_new_version": served["weight_version"] == new,
            "learning_went_on_from_it": bool(children),
        }
        self.journal.facts["rollback"] = facts
        self.journal.facts["rollback_ok"] = all(
            facts[k] for k in ("same_content", "answered_by_new_version", "learning_went_on_from_it")
        )

    async def _read_events(self) -> None:
        """Markers for what the service recorded since the last look."""
        page = await self.api.get("/v1/events", after=self._last_event, limit=500)
        for event in page["data"]:
            self._last_event = event["id"]
            if event["kind"] == "swap":
                self.journal.mark("version", str(event["data"]["to"]))
            elif event["kind"] == "ewma_reset":
                self.journal.mark("reset", str(event["data"]["cause"]))
            elif event["kind"] in ("drift_detected", "environment_change_confirmed"):
                self.journal.mark("drift", event["kind"])

    async def _take_stock(self) -> None:
        """Facts that need the whole run: swaps, log-prob gap, what became of every accepted episode."""
        await self._read_events()
        facts = self.journal.facts
        events = [e async for e in self.api.pages("/v1/events", limit=500)]
        swaps = [e | e["data"] for e in events if e["kind"] == "swap"]
        facts["swaps"] = [
            {
                "from": s["from"],
                "to": s["to"],
                "seconds": s["seconds"],
                "started": s["at"] - s["seconds"],
                "ended": s["at"],
            }
            for s in swaps
        ]
        during = self.journal.requests.during
        facts["swaps_under_traffic"] = sum(during([(s["started"], s["ended"])]) > 0 for s in facts["swaps"])
        facts["resets"] = [e["data"]["cause"] for e in events if e["kind"] == "ewma_reset"]
        steps = [s async for s in self.api.pages("/v1/training/steps", limit=500)]
        gaps = [s["metrics"].get("mismatch/current_version_max_abs_logp") for s in steps]
        facts["logprob_gap_max"] = max((g for g in gaps if g is not None), default=None)
        facts["updates"] = dict(Counter(s["status"] for s in steps))
        versions = [v async for v in self.api.pages("/v1/weights", limit=500)]
        facts["versions_published"] = sum(v["origin"] != "seed" for v in versions)
        state = await self.api.get("/v1/training")
        facts["episodes_trained_twice"] = state["episodes_trained_twice"]
        rows = {r["id"]: r["status"] async for r in self.api.pages("/v1/episodes", limit=500)}
        facts["episodes_lost"] = sum(id not in rows or rows[id] == "failed" for id in self.journal.accepted_ids)
        facts["episodes_dropped"] = state["drops_by_reason"]
        facts["episodes_trained"] = sum(status == "trained" for status in rows.values())
        facts["seconds_by_phase"] = {k: round(v, 1) for k, v in self.seconds.items()}

    @asynccontextmanager
    async def _phase(self, label: str) -> AsyncIterator[Progress]:
        started = time.monotonic()
        with self.console.status(label) as status:
            yield lambda text: status.update(f"{label} · {text}")
        seconds = time.monotonic() - started
        self.seconds[label] = self.seconds.get(label, 0.0) + seconds
        self.console.print(f"[green]✓[/] {label} [dim]({seconds:.0f} s)[/]")


async def run_demo(plan: Plan, directory: Path, console: Console) -> dict[str, Any]:
    """Run everything on a fresh service under ``directory`` and write the report there; returns the report."""
    data_dir = directory / "service"
    _clear(data_dir)
    started = time.monotonic()
    journal = Journal(seed=plan.seed)
    overrides = {"ONLINE_AGENT_LEARNER__SEED": str(plan.seed)}
    async with AsyncExitStack() as stack:
        with console.status("starting api, engine, learner, worker and Redis"):
            service = await stack.enter_async_context(running_service(data_dir, overrides))
        console.print(f"[green]✓[/] everything runs [dim]({time.monotonic() - started:.0f} s, {service.url})[/]")
        api = await stack.enter_async_context(connect(service.url, service.key, journal.requests))
        await Demo(plan, api, journal, console).run()
    journal.facts["wall_seconds"] = round(time.monotonic() - started, 1)
    journal.facts["policy"] = POLICY
    return write_report(journal, directory)


def _clear(data_dir: Path) -> None:
    """Remove the service data of an earlier demo, and nothing else. Raises BadInput for any other folder."""
    if not data_dir.exists():
        return
    if any(data_dir.iterdir()) and not (data_dir / "online_agent.db").exists():
        raise BadInput(f"{data_dir} is not the data of an earlier demo; name another --out", param="out")
    shutil.rmtree(data_dir)


def run(directory: Path, seed: int) -> int:
    """The ``demo`` command: 0 when the run shows everything it has to, 1 when a gate was missed."""
    console = Console()
    console.print(f"[bold]online_agent demo[/], seed {seed}: {POLICY}")
    try:
        report = asyncio.run(run_demo(Plan(seed=seed), directory, console))
    except ApiFailure as failure:
        console.print(f"[red]the API failed a request:[/] {failure}", highlight=False)
        return 1
    except OnlineAgentError as error:
        console.print(f"[red]{type(error).__name__}:[/] {error}", highlight=False)
        return 1
    print_summary(console, report, directory)
    return 0 if all(gate["met"] for gate in report["gates"]) else 1
