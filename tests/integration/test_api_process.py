"""The real HTTP process, built from its settings: it serves without a broker, and SIGTERM drains it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from online_agent.config.settings import Settings
from online_agent.store.records import VersionNew
from online_agent.store.session import Database
from online_agent.types import Scope, VersionOrigin, VersionState
from online_agent.weights.store import WeightStore
from tests.fakes.engine import Reply, ScriptedEngine
from tests.fakes.tiny_model import VOCAB_SIZE, write_tiny_model

NO_BROKER = "redis://127.0.0.1:1/0"
DRAIN_S = 3.0
BODY = {"env": "bug_repair", "limits": {"max_turns": 1}}
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


def prepare(data_dir: Path) -> str:
    """Weights, a serving version and a key, as ``online-agent up`` leaves them; returns the key's secret."""
    settings = Settings(data_dir=data_dir)
    db = Database(settings.database_url)
    db.migrate()
    model_dir = write_tiny_model(data_dir / "model", seed=1)
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


@pytest.fixture
async def api(tmp_path: Path, unused_tcp_port: int) -> AsyncIterator[Api]:
    secret = await asyncio.to_thread(prepare, tmp_path)
    scripted = ScriptedEngine(tmp_path / "model", version=1, vocab_size=VOCAB_SIZE)
    async with scripted.running() as engine, running_api(tmp_path, engine, unused_tcp_port, secret) as running:
        yield running


async def test_without_a_broker_it_serves_and_what_finished_waits_for_grading(api: Api) -> None:
    assert (await api.client.get("/readyz")).json()["status"] == "ready"
    created = (await api.client.post("/v1/episodes", json=BODY)).json()
    assert created["task_id"] == "train-0"
    async with asyncio.timeout(20):
        while True:
            episode = (await api.client.get(f"/v1/episodes/{created['id']}?include=spans")).json()
            if episode["status"] == "finished":
                break
            await asyncio.sleep(0.05)
    (turn,) = episode["turns"]
    actions = [span for span in turn["spans"] if span["is_action"]]
    assert len(actions[0]["token_ids"]) == len(actions[0]["logprobs"]) > 0
    assert episode["weight_version"] == 1


async def test_a_rollback_without_a_broker_is_503_and_changes_nothing(api: Api) -> None:
    answer = await api.client.post("/v1/weights/1/rollback")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "broker_unavailable")
    assert [row["version"] for row in (await api.client.get("/v1/weights")).json()["data"]] == [1]


async def test_sigterm_refuses_new_episodes_finishes_those_under_way_and_answers_who_waits(api: Api) -> None:
    api.engine.replies.append(Reply([7, 8, 9], delay_s=1.5))
    waiting = asyncio.create_task(api.client.post("/v1/episodes?wait=true", json=BODY))
    async with asyncio.timeout(20):
        while True:
            if api.engine.num_running:
                break
            await asyncio.sleep(0.02)
    api.process.send_signal(signal.SIGTERM)
    not_ready = await api.first_status("/readyz", 503)
    assert not_ready.json()["checks"]["accepting"] is False
    refused = await api.client.post("/v1/episodes", json=BODY)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
    answer = await waiting
    assert (answer.status_code, answer.json()["status"]) == (201, "finished")
    async with asyncio.timeout(20):
        assert await api.process.wait() == -signal.SIGTERM  # uvicorn ends with the signal it was sent, after closing
