"""The real HTTP process, built from its settings: it serves without a broker, and SIGTERM drains it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.api_process import Api, prepare, running_api
from tests.fakes.engine import Reply, ScriptedEngine
from tests.fakes.tiny_model import VOCAB_SIZE

BODY = {"env": "bug_repair", "limits": {"max_turns": 1}}


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
