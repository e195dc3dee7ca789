"""The real HTTP process killed right after an answer: what was answered is stored, and the episode goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from online_agent.config.settings import Settings
from online_agent.store.session import Database
from tests.fakes.api_process import prepare, running_api
from tests.fakes.engine import ScriptedEngine
from tests.fakes.gateway import events_of
from tests.fakes.tiny_model import VOCAB_SIZE

USER = {"role": "user", "content": "fix it"}
EPISODE = {"X-Episode-Id": "task"}


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(tmp_path / "model", version=1, vocab_size=VOCAB_SIZE).running() as running:
        yield running


def body(messages: list[Any], **more: Any) -> dict[str, Any]:
    return {"model": "online-agent", "messages": messages, "max_tokens": 8, **more}


async def test_an_answer_is_readable_after_a_kill_that_follows_it_at_once(
    tmp_path: Path, engine: ScriptedEngine, unused_tcp_port: int
) -> None:
    secret = await asyncio.to_thread(prepare, tmp_path)
    async with running_api(tmp_path, engine, unused_tcp_port, secret) as api:
        plain = await api.client.post("/v1/chat/completions", json=body([USER]), headers=EPISODE)
        history = [USER, plain.json()["choices"][0]["message"], USER]
        streamed = await api.client.post("/v1/chat/completions", json=body(history, stream=True), headers=EPISODE)
        api.process.kill()
        await api.process.wait()
    receipt = events_of(streamed.text)[-2]["receipt"]
    db = Database(Settings(data_dir=tmp_path).database_url)
    with db.reading() as tx:
        turns = tx.episodes.turns(receipt["episode_id"])
    db.close()
    assert [turn.number for turn in turns] == [plain.json()["receipt"]["turn"], receipt["turn"]] == [0, 1]
    async with running_api(tmp_path, engine, unused_tcp_port, secret) as api:
        text = "".join(c["choices"][0]["delta"].get("content") or "" for c in events_of(streamed.text)[:-1])
        further = [*history, {"role": "assistant", "content": text}, USER]
        answer = await api.client.post("/v1/chat/completions", json=body(further), headers=EPISODE)
        listed = (await api.client.get("/v1/episodes/task/completions")).json()["data"]
    assert answer.status_code == 200
    assert [(c["turn"], c["segment"]) for c in listed] == [(0, 0), (1, 0), (2, 0)]
