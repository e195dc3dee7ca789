"""Requests at fixed times, as a process of its own: ``python -m benchmarks.proxies.load``, its plan as JSON on stdin.

The arrivals do not wait for answers (open loop), and a latency counts from the moment at which a request was to be
sent, so a side that falls behind shows it. Requests are turns of episodes: each sends the history so far, and the turns
of one episode come ``TURN_GAP_S`` or more apart. An answer is right when its text is the scripted one.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp
import orjson
import uvloop

from benchmarks.proxies.engine import stay_on_last_core

NUM_TURNS = 4
TURN_GAP_S = 1.0
ANSWER_TIMEOUT_S = 10.0
SYSTEM = "You repair small programs. Say what is wrong, then change as little as you can."
_ASKED = "Test {turn} of case {episode} fails: add(2, 3) gives {turn}, and it has to be 5. Where is the mistake?"


@dataclass(frozen=True, slots=True)
class Plan:
    """``rate`` requests a second for ``seconds``, after ``warm_up_s`` at the same rate that do not count.

    ``name`` goes into the names of the episodes, so that no two trials share one.
    """

    url: str
    headers: dict[str, str]
    model: str
    expected: str
    name: str
    rate: float
    seconds: float
    warm_up_s: float = 1.0


@dataclass(slots=True)
class Trial:
    """``latencies_s`` of the right answers; ``errors`` counts what else came of the requests that count."""

    latencies_s: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def num_errors(self) -> int:
        return sum(self.errors.values())

    def quantile(self, share: float) -> float:
        """The latency that ``share`` of the answers stay within: the nearest rank, no interpolation."""
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("inf")


@dataclass(frozen=True, slots=True)
class Request:
    """``at_s`` from the start of the trial."""

    at_s: float
    episode: str
    body: bytes
    counts: bool


def requests(plan: Plan) -> Iterator[Request]:
    """In the order in which they are sent."""
    num_together = max(1, round(plan.rate * TURN_GAP_S))
    bodies: dict[tuple[int, int], bytes] = {}
    for number in range(round((plan.warm_up_s + plan.seconds) * plan.rate)):
        round_number, within = divmod(number, num_together)
        block, turn = divmod(round_number, NUM_TURNS)
        at_s = number / plan.rate
        episode = block * num_together + within
        body = bodies.setdefault((within, turn), _body(plan, within, turn))
        yield Request(at_s, f"{plan.name}-{episode}", body, at_s >= plan.warm_up_s)


def _body(plan: Plan, episode: int, turn: int) -> bytes:
    messages: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]
    for number in range(turn + 1):
        messages.append({"role": "user", "content": _ASKED.format(episode=episode, turn=number)})
        messages.append({"role": "assistant", "content": plan.expected})
    return orjson.dumps({"model": plan.model, "messages": messages[:-1], "max_tokens": 128, "temperature": 1.0})


async def run(plan: Plan) -> Trial:
    """The trial, over when every answer is there or ``ANSWER_TIMEOUT_S`` late."""
    planned, trial, errors = list(requests(plan)), Trial(), Counter[str]()
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=plan.headers) as session:

        async def ask(request: Request, due: float) -> None:
            problem = await _problem(session, plan, request)
            if not request.counts:
                return
            if problem is None:
                trial.latencies_s.append(time.perf_counter() - due)
            else:
                errors[problem] += 1

        async with asyncio.TaskGroup() as under_way:
            started = time.perf_counter()
            for request in planned:
                due = started + request.at_s
                if (wait := due - time.perf_counter()) > 0:
                    await asyncio.sleep(wait)
                under_way.create_task(ask(request, due))
    trial.errors = dict(errors)
    return trial


async def _problem(session: aiohttp.ClientSession, plan: Plan, request: Request) -> str | None:
    """What is wrong with the answer, or None."""
    headers = {"content-type": "application/json", "x-episode-id": request.episode}
    try:
        async with session.post(plan.url, data=request.body, headers=headers) as answer:
            content: Any = orjson.loads(await answer.read())
            if answer.status != 200:
                return f"status {answer.status}: {str(content)[:200]}"
    except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
        return type(error).__name__
    text = content["choices"][0]["message"]["content"]
    return None if text == plan.expected else f"another text: {str(text)[:80]!r}"


def main() -> None:
    stay_on_last_core()
    plan = Plan(**orjson.loads(sys.stdin.buffer.read()))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        trial = runner.run(run(plan))
    sys.stdout.buffer.write(orjson.dumps(asdict(trial)))


if __name__ == "__main__":
    main()
