"""The real HTTP process, built from its settings, in front of a scripted engine."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from online_agent.config.settings import Settings
from online_agent.store.records import VersionNew
from online_agent.store.session import Database
from online_agent.types import Scope, VersionOrigin, VersionState
from online_agent.weights.store import WeightStore
from tests.fakes.engine import ScriptedEngine
from tests.fakes.tenants import opt_in
from tests.fakes.tiny_model import write_tiny_model

NO_BROKER = "redis://127.0.0.1:1/0"
DRAIN_S = 3.0
MAIN = "from online_agent.processes.serve import main; main()"


@dataclass(frozen=True)
class Api:
    process: asyncio.subprocess.Process
    engine: ScriptedEngine
    client: httpx.AsyncClient

    async def first_status(self, path: str, status: int) -> httpx.Response:
        """The first answer with that status."""
        async with asyncio.timeout(20):
            while True:
                answer = await self.client.get(path)
                if answer.status_code == status:
                    return answer
                await asyncio.sleep(0.05)


def prepare(data_dir: Path, scale: float = 0.2) -> str:
    """Weights, a serving version and a key, as ``online-agent up`` leaves them; returns the key's secret."""
    settings = Settings(data_dir=data_dir)
    db = Database(settings.database_url)
    db.migrate()
    opt_in(db)
    model_dir = write_tiny_model(data_dir / "model", seed=1, scale=scale)
    seed = WeightStore(settings.weights_dir).import_seed(model_dir, version=1)
    new = VersionNew(1, VersionOrigin.SEED, state=VersionState.SERVING, content_hash=seed.manifest.content_hash)
    with db.transaction() as tx:
        tx.weights.insert(new)
        _, secret = tx.keys.create("acme", "test", list(Scope))
    db.close()
    return secret


@asynccontextmanager
async def running_api(data_dir: Path, engine: ScriptedEngine, port: int, secret: str) -> AsyncIterator[Api]:
    environment = {
        **os.environ,
        "ONLINE_AGENT_DATA_DIR": str(data_dir),
        "ONLINE_AGENT_ENGINE__URL": engine.url,
        "ONLINE_AGENT_BROKER__URL": NO_BROKER,
        "ONLINE_AGENT_API__PORT": str(port),
        "ONLINE_AGENT_API__DRAIN_TIMEOUT_S": str(DRAIN_S),
        "ONLINE_AGENT_API__HELD_TIMEOUT_S": "30",
        "OMP_NUM_THREADS": "1",
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", MAIN, env=environment)
    headers = {"Authorization": f"Bearer {secret}"}
    try:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30, trust_env=False
        ) as client:
            await until_alive(client, process)
            yield Api(process, engine, client)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until_alive(client: httpx.AsyncClient, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(60):
        while True:
            assert process.returncode is None, "the process ended while it started"
            try:
                await client.get("/healthz")
            except httpx.TransportError:
                await asyncio.sleep(0.1)
            else:
                return
