"""One agent process in miniature: scripted engine, real renderer, real SQLite, an environment without a sandbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from envs.protocols import Environment
from envs.types import Verdict
from online_agent.agent.runner import EpisodeRequest, EpisodeRunner
from online_agent.config.serving import AgentSettings
from online_agent.rendering import ChatRenderer
from online_agent.serving.client import EngineClient
from online_agent.store.records import EpisodeGroup, EpisodeRecord, TurnRecord
from online_agent.store.session import Database
from online_agent.types import Limits, Sampling, Span
from tests.fakes.engine import Reply, ScriptedEngine
from tests.fakes.environment import NotesEnvironment
from tests.fakes.tiny_model import CONTEXT_LENGTH, VOCAB_SIZE

TENANT = "acme"
SETTINGS = AgentSettings(max_episodes_in_flight=4, max_episodes_queued=3)


def call_text(name: str, **arguments: Any) -> str:
    call = orjson.dumps({"name": name, "arguments": arguments}).decode()
    return f"<tool_call>\n{call}\n</tool_call>"


@dataclass
class Desk:
    """What a test needs to run episodes and to look at what they left behind."""

    engine: ScriptedEngine
    renderer: ChatRenderer
    db: Database
    runner: EpisodeRunner
    environments: dict[str, Environment]
    finished: list[str] = field(default_factory=list)

    def ids(self, text: str) -> list[int]:
        return self.renderer.encode_template_text(text).tolist()

    def say(self, *texts: str, **options: Any) -> None:
        """The engine answers with these texts, each ended by the end-of-turn token."""
        self.engine.replies.extend(Reply(self.ids(f"{text}<|im_end|>"), **options) for text in texts)

    async def start(self, *, task_id: str = "train-0", limits: Limits | None = None, **request: Any) -> str:
        request.setdefault("sampling", Sampling(max_new_tokens=200))
        limits = limits or Limits(max_turns=6, max_tokens=600, timeout_s=20)
        return await self.runner.start(TENANT, None, EpisodeRequest("notes", task_id, limits=limits, **request))

    async def start_group(self, size: int, *, task_id: str = "train-0", **request: Any) -> EpisodeGroup:
        request.setdefault("sampling", Sampling(max_new_tokens=200))
        limits = Limits(max_turns=6, max_tokens=600, timeout_s=20)
        return await self.runner.start_group(
            TENANT, None, EpisodeRequest("notes", task_id, limits=limits, **request), size
        )

    async def run(self, **request: Any) -> EpisodeRecord:
        """The episode once its task has ended (nothing grades it)."""
        return await self.ended(await self.start(**request))

    async def ended(self, episode_id: str) -> EpisodeRecord:
        async for _ in self.runner.told(episode_id):
            pass
        await self.runner.landed(episode_id)
        return self.record(episode_id)

    def record(self, episode_id: str) -> EpisodeRecord:
        with self.db.reading() as tx:
            return tx.episodes.get(TENANT, episode_id)

    def spans(self, episode_id: str) -> list[Span]:
        with self.db.reading() as tx:
            return tx.episodes.spans(episode_id)

    def turns(self, episode_id: str) -> list[TurnRecord]:
        with self.db.reading() as tx:
            return tx.episodes.turns(episode_id)

    def grade(self, episode_id: str, reward: float = 1.0) -> None:
        with self.db.transaction() as tx:
            tx.episodes.grade(episode_id, Verdict(reward, reward > 0))

    def prompts(self) -> list[list[int]]:
        """What the engine was given, call by call."""
        return [body["input_ids"] for body in self.engine.bodies("/generate")]


def joined(spans: Sequence[Span]) -> list[int]:
    return np.concatenate([span.token_ids for span in spans]).tolist() if spans else []


@pytest.fixture
def database(sqlite_url: str) -> Iterator[Database]:
    db = Database(sqlite_url)
    yield db
    db.close()


@pytest.fixture
async def desk(model_dirs: dict[int, Path], database: Database) -> AsyncIterator[Desk]:
    renderer = ChatRenderer.load(model_dirs[1])
    environments: dict[str, Environment] = {"notes": NotesEnvironment()}
    async with (
        ScriptedEngine(model_dirs[1], vocab_size=VOCAB_SIZE).running() as engine,
        EngineClient(engine.url, vocab_size=VOCAB_SIZE, context_length=CONTEXT_LENGTH) as client,
    ):
        finished: list[str] = []
        runner = EpisodeRunner(database, client, renderer, environments, SETTINGS, finished.append)
        yield Desk(engine, renderer, database, runner, environments, finished)
        await runner.drain(1.0)
