"""Many streams at once, from a process that holds them all open: no error, and what the service keeps of them after."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import orjson

from benchmarks.proxies.sides import MODEL, Side

OPEN_EVERY_S = 0.002
ANSWER_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Wave:
    """``errors`` by what was wrong; ``most_open`` streams were open at one moment."""

    num_right: int
    errors: dict[str, int]
    most_open: int


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a process holds: resident memory in bytes, and open files."""

    memory_bytes: int
    num_files: int


def holdings(pid: int) -> Holdings:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Holdings(pages * os.sysconf("SC_PAGE_SIZE"), len(list(Path(f"/proc/{pid}/fd").iterdir())))


async def wave(side: Side, name: str, num_streams: int, expected: str) -> Wave:
    """``num_streams`` answers streamed side by side, each of an episode of its own and read to its end."""
    errors, num_open, most_open = Counter[str](), 0, 0
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=side.headers) as session:

        async def read(number: int) -> str:
            nonlocal num_open, most_open
            num_open += 1
            most_open = max(most_open, num_open)
            try:
                return await _problem(session, side, f"{name}-{number}", expected)
            except (aiohttp.ClientError, TimeoutError, OSError, orjson.JSONDecodeError) as error:
                return type(error).__name__
            finally:
                num_open -= 1

        async with asyncio.TaskGroup() as group:
            streams = []
            for number in range(num_streams):
                streams.append(group.create_task(read(number)))
                await asyncio.sleep(OPEN_EVERY_S)
        errors.update(stream.result() for stream in streams if stream.result())
    return Wave(num_streams - errors.total(), dict(errors), most_open)


async def _problem(session: aiohttp.ClientSession, side: Side, episode: str, expected: str) -> str:
    """What is wrong with the stream, or nothing."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "2 + 2?"}], "max_tokens": 128, "stream": True}
    headers = {"content-type": "application/json", "x-episode-id": episode}
    async with session.post(side.chat_url, data=orjson.dumps(body), headers=headers) as answer:
        if answer.status != 200:
            return f"status {answer.status}"
        content = (await answer.read()).decode()
    events = [line.removeprefix("data: ") for line in content.splitlines() if line.startswith("data: ")]
    if events[-1] != "[DONE]":
        return f"the stream ends with {events[-1][:80]!r}"
    deltas = (choice["delta"] for event in events[:-1] for choice in orjson.loads(event)["choices"])
    text = "".join(delta.get("content") or "" for delta in deltas)
    return "" if text == expected else f"another text: {text[:80]!r}"
