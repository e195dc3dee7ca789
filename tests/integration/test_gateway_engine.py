"""Clients' agents in front of the real SGLang: what is stored is what the engine sampled, at the log-probs it had."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import httpx2
import numpy as np
import pytest
from anthropic import Anthropic
from openai import OpenAI

from online_agent.config.settings import GatewaySettings
from online_agent.gateway.gateway import Gateway
from online_agent.rendering import ChatRenderer
from online_agent.serving.client import EngineClient
from online_agent.types import TrainingEpisode
from tests.engine_fixtures import RealEngine
from tests.fakes.api import TENANT, World, on_a_port, open_world
from tests.fakes.gateway import READ_FILE
from tests.sdk_agents import anthropic_agent, openai_agent

pytestmark = [pytest.mark.engine, pytest.mark.slow]

CLAUDE_TOOL = {"name": "read_file", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}


@dataclass
class Site:
    world: World
    engine: EngineClient
    real: RealEngine
    url: str

    def rows(self, name: str) -> list[TrainingEpisode]:
        with self.world.db.reading() as tx:
            found = tx.clients.find(TENANT, name)
            assert found is not None
            return tx.clients.training_rows(found.id, 1.0)

    def openai(self, episode: str) -> OpenAI:
        headers = {"X-Episode-Id": episode}
        key = self.world.secrets["agent"]
        http = httpx.Client(trust_env=False)
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, http_client=http, default_headers=headers)

    async def scored(self, row: TrainingEpisode) -> np.ndarray[Any, Any]:
        """The engine's own log-prob of every token of the row, NaN for the first."""
        key = self.real.settings.api_key.get_secret_value()
        body = {
            "input_ids": row.token_ids.tolist(),
            "sampling_params": {"temperature": 1.0, "max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            answer = await client.post(
                f"{self.real.url}/generate", json=body, headers={"Authorization": f"Bearer {key}"}
            )
        triples = answer.json()["meta_info"]["input_token_logprobs"]
        return np.asarray([np.nan if triple[0] is None else triple[0] for triple in triples])


@pytest.fixture
async def site(tmp_path: Path, real_engine: RealEngine) -> AsyncIterator[Site]:
    settings = GatewaySettings()
    async with real_engine.client() as engine, open_world(tmp_path, gateway=settings) as world:
        renderer = ChatRenderer.load(real_engine.model_dirs[1])
        runtime = world.runtime
        gateway = Gateway(world.db, engine, renderer, settings, runtime.settings.agent, runtime.threads)
        runtime.gateway = gateway
        async with on_a_port(world) as client:
            yield Site(world, engine, real_engine, str(client.base_url))


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_openai_agents_rows_hold_the_engines_own_log_probs(site: Site, is_streamed: bool) -> None:
    client = site.openai("task")

    def use() -> list[Any]:
        ask = {"is_streamed": is_streamed, "max_tokens": 24}
        messages = openai_agent.solve(client, "fix it", [READ_FILE], lambda name, arguments: "x = 1", **ask)
        ask_again = [*messages, {"role": "user", "content": "go on"}]
        client.chat.completions.create(model="online-agent", messages=ask_again, tools=[READ_FILE], max_tokens=24)
        return messages

    await asyncio.to_thread(use)
    [row] = site.rows("task")
    assert row.num_action_tokens >= 2
    expected = await site.scored(row)
    np.testing.assert_allclose(row.logprobs[row.action_mask], expected[row.action_mask], atol=2e-3)
    assert set(row.versions[row.action_mask].tolist()) == {1}
    client.close()


async def test_streamed_and_plain_answers_are_equal_rows(site: Site) -> None:
    """Greedy, so that both sample the same ids; greedy turns are not trained on, so the turns are compared."""
    client = site.openai("task")

    def use() -> None:
        ask: Any = {"model": "online-agent", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
        client.chat.completions.create(**ask, max_tokens=24, extra_headers={"X-Episode-Id": "plain"})
        list(client.chat.completions.create(**ask, max_tokens=24, stream=True, extra_headers={"X-Episode-Id": "flow"}))

    await asyncio.to_thread(use)
    with site.world.db.reading() as tx:
        pair = [tx.clients.spans_of(tx.clients.find(TENANT, name).id)[0] for name in ("plain", "flow")]  # type: ignore[union-attr]
    for plain, streamed in zip(*pair, strict=True):
        assert plain.kind == streamed.kind
        assert plain.token_ids.tolist() == streamed.token_ids.tolist()
        assert plain.version_runs == streamed.version_runs
        if plain.logprobs is not None and streamed.logprobs is not None:
            np.testing.assert_allclose(plain.logprobs, streamed.logprobs, atol=1e-4)
    client.close()


async def test_an_anthropic_agent_and_log_probs_with_alternatives(site: Site) -> None:
    claude = Anthropic(
        base_url=site.url, api_key=site.world.secrets["agent"], http_client=httpx2.Client(trust_env=False),
        default_headers={"X-Episode-Id": "claude"},
    )  # fmt: skip
    client = site.openai("tops")

    def use() -> Any:
        anthropic_agent.solve(
            claude, "fix it", [CLAUDE_TOOL], lambda name, arguments: "x", is_streamed=True, max_tokens=24
        )
        return client.chat.completions.create(
            model="online-agent", messages=[{"role": "user", "content": "hi"}], max_tokens=4, logprobs=True,
            top_logprobs=3,
        )  # fmt: skip

    answer = await asyncio.to_thread(use)
    for token in answer.choices[0].logprobs.content:
        tops = [top.logprob for top in token.top_logprobs]
        assert len(tops) == 3
        assert tops == sorted(tops, reverse=True)
        assert token.logprob <= tops[0] + 1e-6
    assert site.rows("claude")
    claude.close()
    client.close()


async def test_a_client_that_leaves_frees_the_engine_within_two_seconds(site: Site) -> None:
    client = site.openai("left")

    def use() -> None:
        ask: Any = {"model": "online-agent", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 900}
        stream = client.chat.completions.create(**ask, stream=True)
        next(iter(stream))
        next(iter(stream))
        stream.close()

    await asyncio.to_thread(use)
    started = time.monotonic()
    while (await site.engine.loads()).num_running:
        assert time.monotonic() - started < 2.0
        await asyncio.sleep(0.05)
    client.close()
