"""Starts the whole service the way a user does, ``online-agent up``, and stops it again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from online_agent.errors import OnlineAgentError

START_TIMEOUT_S = 240.0
STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Service:
    url: str
    key: str
    log: Path


@asynccontextmanager
async def running_service(data_dir: Path, overrides: Mapping[str, str]) -> AsyncIterator[Service]:
    """The service answers ``/readyz`` inside the block and has drained and ended after it."""
    data_dir.mkdir(parents=True, exist_ok=True)
    log = data_dir / "up.log"
    environment = os.environ | {"ONLINE_AGENT_DATA_DIR": str(data_dir), "ONLINE_AGENT_API__PORT": "0"} | dict(overrides)
    with log.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "online_agent.cli.main",
            "up",
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )
    try:
        yield await _wait_ready(process, data_dir, log)
    finally:
        await _stop(process)


async def _wait_ready(process: asyncio.subprocess.Process, data_dir: Path, log: Path) -> Service:
    facts_file = data_dir / "run" / "api.json"
    deadline = time.monotonic() + START_TIMEOUT_S
    while not facts_file.exists():
        if process.returncode is not None:
            raise OnlineAgentError(f"`online-agent up` ended with code {process.returncode}:\n{_tail(log)}")
        if time.monotonic() > deadline:
            raise OnlineAgentError(f"not everything was ready after {START_TIMEOUT_S:.0f} s:\n{_tail(log)}")
        await asyncio.sleep(0.2)
    facts = json.loads(facts_file.read_text())
    return Service(facts["url"], Path(facts["key_file"]).read_text().strip(), log)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
