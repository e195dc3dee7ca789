"""Live traffic and held-out measurements against one service, as plain API requests.

More episodes are in flight than one batch holds, so that the engine never waits for the learner nor the learner for
the engine: what is trained is a few versions old. Episodes in flight and those that wait to be trained share a bound.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

from online_agent.demo.client import Api, ApiFailure
from online_agent.errors import OnlineAgentError

ENV = "bug_repair"
TASKS_PER_SEED = 1_000_000  # seeds never share a task
POLL_S = 0.5
SETTLE_POLL_S = 0.1
SETTLE_TIMEOUT_S = 60.0

State = dict[str, Any]
ENDED = ("committed", "skipped")


class RunFailed(OnlineAgentError):
    """The run did not come to its end."""

    code = "run_failed"


class Stalled(RunFailed):
    """The learner ended no step for too long."""


class LiveTraffic:
    """Sends the training tasks of a seed in order, in groups where the recipe wants them."""

    def __init__(self, api: Api, *, seed: int, group_size: int | None, max_open: int) -> None:
        self._api = api
        self._group_size = group_size or 1
        self._max_open = max_open
        first = seed * TASKS_PER_SEED
        self._tasks: Iterator[int] = iter(range(first, first + TASKS_PER_SEED))
        self._in_flight = 0
        self._waiting = 0
        self._senders: list[asyncio.Task[None]] = []
        self._is_over = asyncio.Event()

    async def until(self, is_done: Callable[[State], bool], stall_s: float) -> None:
        """Traffic flows until ``is_done`` says so of ``/v1/training``; no new episode is sent after that.

        Raises RunFailed when the learner paused itself, Stalled when it ended no step for ``stall_s``, ApiFailure when
        a request failed.
        """
        newest, moved_at = None, time.monotonic()
        self._senders = [asyncio.create_task(self._send()) for _ in range(self._max_open // self._group_size)]
        try:
            while not is_done(state := await self._api.get("/v1/training")):
                self._waiting = state["num_ready"] + state["num_ungraded"]
                if state["is_paused"]:
                    raise RunFailed("the learner paused itself: too many steps skipped in a row")
                if newest != (newest := _ended_steps(state)):
                    moved_at = time.monotonic()
                if time.monotonic() - moved_at > stall_s:
                    raise Stalled(f"no step ended for {stall_s:.0f} s after {state['steps_committed']} updates")
                await self._sleep_or_raise()
        finally:
            self._is_over.set()

    async def drained(self) -> None:
        """Every episode that was sent has ended."""
        await asyncio.gather(*self._senders)

    async def stop(self) -> None:
        """Nobody waits for an episode any more; those under way end by themselves."""
        for sender in self._senders:
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)

    async def _send(self) -> None:
        while not self._is_over.is_set():
            if self._in_flight + self._waiting + self._group_size > self._max_open:
                await asyncio.sleep(SETTLE_POLL_S)
                continue
            self._in_flight += self._group_size
            try:
                await self._api.post("/v1/episodes", self._body(), wait="true")
            finally:
                self._in_flight -= self._group_size
                self._waiting += self._group_size

    def _body(self) -> dict[str, Any]:
        group = {"group_size": self._group_size} if self._group_size > 1 else {}
        return {"env": ENV, "task_id": f"train-{next(self._tasks)}", **group}

    async def _sleep_or_raise(self) -> None:
        finished, _ = await asyncio.wait(self._senders, timeout=POLL_S, return_when=asyncio.FIRST_EXCEPTION)
        for task in finished:
            task.result()


def _ended_steps(state: State) -> list[int]:
    return [s["step"] for s in state["steps"] if s["status"] in ENDED]


async def settle(api: Api, lag: int) -> int:
    """No step is under way and the newest version that is due serves, so that the weights stand still.

    Returns the serving version. Raises RunFailed when that does not come about.
    """
    await api.post("/v1/training/pause")
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        state = await api.get("/v1/training")
        if state["state"] == "paused" and state["current_version"] - state["serving_version"] < lag:
            return int(state["serving_version"])
        if time.monotonic() > deadline:
            raise RunFailed(f"version {state['current_version']} did not serve, {state['serving_version']} still does")
        await asyncio.sleep(SETTLE_POLL_S)


async def measure_heldout(api: Api, *, seed: int, version: int, num_episodes: int, concurrency: int) -> str:
    """Outcomes of ``version`` on the seed's held-out tasks, sampled at temperature 1. Raises ApiFailure."""
    gate = asyncio.Semaphore(concurrency)

    async def one(task: int) -> str:
        async with gate:
            body = {"env": ENV, "task_id": f"heldout-{task}", "weight_version": version}
            row = await api.post("/v1/episodes", body, wait="true")
        if row["status"] == "failed":
            raise ApiFailure(f"held-out episode {row['id']} failed: {row['failure_reason']}")
        return "1" if row["verdict"]["is_success"] else "0"

    first = seed * TASKS_PER_SEED
    return "".join(await asyncio.gather(*(one(task) for task in range(first, first + num_episodes))))
