"""The HTTP application in front of a scripted engine: what other people's agents meet."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson

from online_agent.agent.interruption import Interrupter, PauseLimits
from online_agent.config.serving import GatewaySettings
from online_agent.gateway.gateway import Gateway
from online_agent.gateway.idle_sweep import IdleSweep
from online_agent.rendering import ChatRenderer
from online_agent.serving.client import EngineClient
from online_agent.store.records import ClientEpisodeRecord, CompletionRecord, DiscardedRecord, EpisodeRecord
from online_agent.types import Span, SpanKind, TrainingEpisode
from online_agent.weights.experts import ExpertShape
from tests.fakes.api import TENANT, World, open_world
from tests.fakes.engine import Reply, ScriptedEngine
from tests.fakes.tiny_model import CONTEXT_LENGTH, VOCAB_SIZE

MODEL = "online-agent"
READ_FILE = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a file.",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}
RUN_TESTS = {"type": "function", "function": {"name": "run_tests", "parameters": {"type": "object"}}}


def call_text(name: str, **arguments: Any) -> str:
    body = orjson.dumps({"name": name, "arguments": arguments}).decode()
    return f"<tool_call>\n{body}\n</tool_call>"


@dataclass
class ClientDesk:
    """What a test needs to be a client, to script the engine, and to look at what was stored."""

    world: World
    engine: ScriptedEngine
    renderer: ChatRenderer
    gateway: Gateway
    sweep: IdleSweep
    http: httpx.AsyncClient

    def ids(self, text: str) -> list[int]:
        return self.renderer.encode_template_text(text).tolist()

    def say(self, *texts: str, ends: bool = True, **options: Any) -> None:
        """The engine answers with these texts, each ended by the end-of-turn token unless not ``ends``."""
        end = "<|im_end|>" if ends else ""
        self.engine.replies.extend(Reply(self.ids(f"{text}{end}"), **options) for text in texts)

    def say_ids(self, ids: Sequence[int], **options: Any) -> None:
        self.engine.replies.append(Reply(list(ids), **options))

    async def post(self, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
        return await self.http.post(path, json=body, headers=headers)

    async def chat(self, messages: list[dict[str, Any]], episode: str | None = None, **body: Any) -> httpx.Response:
        headers = {"X-Episode-Id": episode} if episode else {}
        whole = {"model": MODEL, "messages": messages, "max_tokens": 64, **body}
        return await self.http.post("/v1/chat/completions", json=whole, headers=headers)

    async def answer(self, messages: list[dict[str, Any]], episode: str | None = None, **body: Any) -> dict[str, Any]:
        """The parsed answer of a plain call that succeeds."""
        response = await self.chat(messages, episode, **body)
        assert response.status_code == 200, response.text
        content: dict[str, Any] = response.json()
        return content

    async def chunks(self, messages: list[dict[str, Any]], episode: str | None = None, **body: Any) -> list[Any]:
        """The parsed chunks of a streamed call, without the closing ``[DONE]``, which has to be there."""
        response = await self.chat(messages, episode, stream=True, **body)
        assert response.status_code == 200, response.text
        events = events_of(response.text)
        assert events.pop() == "[DONE]"
        return events

    def prompts(self) -> list[list[int]]:
        """What the engine was given, call by call."""
        return [body["input_ids"] for body in self.engine.bodies("/generate")]

    def client_episode(self, id_or_name: str) -> ClientEpisodeRecord:
        with self.world.db.reading() as tx:
            found = tx.clients.find(TENANT, id_or_name)
        assert found is not None
        return found

    def record(self, episode: str) -> EpisodeRecord:
        with self.world.db.reading() as tx:
            return tx.episodes.get(TENANT, self.client_episode(episode).id)

    def completions(self, episode: str) -> list[CompletionRecord]:
        with self.world.db.reading() as tx:
            return tx.clients.completions(self.client_episode(episode).id)

    def discarded(self, episode: str) -> list[DiscardedRecord]:
        with self.world.db.reading() as tx:
            return tx.clients.discarded(self.client_episode(episode).id)

    def spans(self, episode: str) -> dict[int, list[Span]]:
        with self.world.db.reading() as tx:
            return tx.clients.spans_of(self.client_episode(episode).id)

    def actions(self, episode: str) -> list[list[int]]:
        """The sampled ids of each turn."""
        return [
            [token for span in spans if span.kind is SpanKind.ACTION for token in span.token_ids.tolist()]
            for _, spans in sorted(self.spans(episode).items())
        ]

    def training_rows(self, episode: str, reward: float = 1.0) -> list[TrainingEpisode]:
        with self.world.db.reading() as tx:
            return tx.clients.training_rows(self.client_episode(episode).id, reward)


def events_of(text: str) -> list[Any]:
    """The data of server-sent events; what is not JSON as it stands."""
    datas = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [data if data == "[DONE]" else orjson.loads(data) for data in datas]


def row_text(renderer: ChatRenderer, row: TrainingEpisode, *, actions_only: bool = False) -> str:
    return renderer.decode(row.token_ids[row.action_mask] if actions_only else row.token_ids)


def joined(spans: Sequence[Span]) -> list[int]:
    return np.concatenate([span.token_ids for span in spans]).tolist() if spans else []


@asynccontextmanager
async def open_desk(
    data_dir: Path,
    model_dir: Path,
    *,
    gateway: GatewaySettings | None = None,
    experts: ExpertShape | None = None,
    is_interrupted: bool = False,
    **sections: Any,
) -> AsyncIterator[ClientDesk]:
    """An application with a gateway, whose engine is scripted and returns experts of that shape.

    ``is_interrupted``: the learner may pause the engine.
    """
    gateway = gateway or GatewaySettings(engine_wait_s=0.5)
    renderer = ChatRenderer.load(model_dir)
    async with (
        ScriptedEngine(model_dir, vocab_size=VOCAB_SIZE).running() as engine,
        EngineClient(engine.url, vocab_size=VOCAB_SIZE, context_length=CONTEXT_LENGTH, experts=experts) as client,
        open_world(data_dir, gateway=gateway, **sections) as world,
    ):
        engine.experts = experts
        runtime = world.runtime
        interrupter = Interrupter(world.db, client, runtime.threads, PauseLimits())
        served = Gateway(
            world.db,
            client,
            renderer,
            gateway,
            runtime.settings.agent,
            runtime.threads,
            runtime.redactor,
            interrupter if is_interrupted else None,
        )
        runtime.gateway = served
        sweep = IdleSweep(world.db, gateway, runtime.threads)
        async with interrupter.serving() if is_interrupted else nullcontext():
            yield ClientDesk(world, engine, renderer, served, sweep, world.client)
