"""Live traffic and held-out measurements, both as plain API requests.

Traffic is paced by the learner: episodes in flight plus those waiting to be trained stay under a bound, so that
none grows stale in the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from online_agent.demo.client import Api, ApiFailure
from online_agent.demo.records import Evaluation, Journal, LiveEpisode, Mode

Progress = Callable[[str], None]
POLL_S = 0.5


class Traffic:
    """Sends training tasks; remembers what it sent so that no task is drawn twice."""

    def __init__(self, api: Api, journal: Journal, env: str, concurrency: int, first_task: int) -> None:
        self._api, self._journal, self._env = api, journal, env
        self._concurrency = concurrency
        self._tasks: Iterator[int] = iter(range(first_task, first_task + 10_000_000))
        self._in_flight = 0
        self._room = asyncio.Event()

    def next_task(self) -> str:
        return f"train-{next(self._tasks)}"

    async def until_updates(self, num_updates: int, progress: Progress, on_tick: Callable[[], Awaitable[None]]) -> None:
        """Traffic has flowed until ``num_updates`` more learner steps were committed, and has then ended."""
        state = await self._api.get("/v1/training")
        target = state["steps_committed"] + num_updates
        done = asyncio.Event()
        workers = [asyncio.create_task(self._send_until(done)) for _ in range(self._concurrency)]
        try:
            while state["steps_committed"] < target:
                self._regulate(state)
                progress(self._line(state, target, num_updates))
                await on_tick()
                await self._sleep_or_raise(workers)
                state = await self._api.get("/v1/training")
        finally:
            done.set()
            self._room.set()
            await asyncio.gather(*workers)

    def _regulate(self, state: dict[str, Any]) -> None:
        # One batch being trained, one ready when it ends: a third would only grow stale.
        waiting = state["num_ready"] + state["num_ungraded"]
        has_room = waiting + self._in_flight < 1.75 * state["batch_episodes"]
        (self._room.set if has_room else self._room.clear)()

    def _line(self, state: dict[str, Any], target: int, num_updates: int) -> str:
        done = num_updates - (target - state["steps_committed"])
        recent = [e.is_success for e in self._journal.live[-128:]]
        rate = sum(recent) / len(recent) if recent else 0.0
        return (
            f"update {done}/{num_updates} · version {state['serving_version']} · "
            f"{len(self._journal.live)} live episodes · success of the last {len(recent)}: {rate:.2f}"
        )

    async def _send_until(self, done: asyncio.Event) -> None:
        while not done.is_set():
            await self._room.wait()
            if done.is_set():
                return
            self._in_flight += 1
            try:
                await self._send_one(self.next_task())
            finally:
                self._in_flight -= 1

    async def _send_one(self, task_id: str) -> None:
        row = await self._api.post("/v1/episodes", {"env": self._env, "task_id": task_id}, wait="true")
        self._journal.accepted_ids.add(row["id"])
        if row["status"] != "failed":
            is_success = bool(row["verdict"]["is_success"])
            self._journal.live.append(LiveEpisode(row["id"], is_success, row["weight_version"]))

    async def _sleep_or_raise(self, workers: list[asyncio.Task[None]]) -> None:
        finished, _ = await asyncio.wait(workers, timeout=POLL_S, return_when=asyncio.FIRST_EXCEPTION)
        for task in finished:
            task.result()


class Evaluator:
    """Measures the version that serves on held-out tasks, fresh ones at each call."""

    def __init__(self, api: Api, journal: Journal, env: str, concurrency: int, first_task: int) -> None:
        self._api, self._journal, self._env = api, journal, env
        self._gate = asyncio.Semaphore(concurrency)
        self._next_task = first_task

    async def measure(self, name: str, mode: Mode, num_episodes: int, progress: Progress) -> Evaluation:
        """``num_episodes`` held-out episodes under the version that serves now, pinned for all of them."""
        version = (await self._api.get("/v1/training"))["serving_version"]
        first = self._next_task
        self._next_task += num_episodes
        outcomes: list[bool] = []

        async def one(task: int) -> None:
            async with self._gate:
                outcomes.append(await self._episode(f"heldout-{task}", mode, version))
                progress(f"{len(outcomes)}/{num_episodes} · {sum(outcomes) / len(outcomes):.2f}")

        await asyncio.gather(*(one(task) for task in range(first, first + num_episodes)))
        result = Evaluation(name, mode, num_episodes, sum(outcomes), version, first, len(self._journal.live))
        self._journal.evaluations[name, mode] = result
        return result

    async def _episode(self, task_id: str, mode: Mode, version: int) -> bool:
        body: dict[str, Any] = {"env": self._env, "task_id": task_id, "weight_version": version}
        if mode == "greedy":
            body["sampling"] = {"temperature": 0.0}
        row = await self._api.post("/v1/episodes", body, wait="true")
        self._journal.accepted_ids.add(row["id"])
        if row["status"] == "failed":
            raise ApiFailure(f"evaluation episode {row['id']} on {task_id} failed: {row['failure_reason']}")
        return bool(row["verdict"]["is_success"])
