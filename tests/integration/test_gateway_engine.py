"""Clients' agents in front of the real SGLang: what is stored is what the engine sampled, at the log-probs it had."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from anthropic import Anthropic

from tests.engine_fixtures import RealEngine
from tests.fakes.api import TENANT
from tests.fakes.engine_site import Site, open_site
from tests.fakes.gateway import READ_FILE
from tests.sdk_agents import anthropic_agent, openai_agent

pytestmark = [pytest.mark.engine, pytest.mark.slow]

CLAUDE_TOOL = {"name": "read_file", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}


@pytest.fixture
async def site(tmp_path: Path, real_engine: RealEngine) -> AsyncIterator[Site]:
    async with open_site(tmp_path, real_engine) as opened:
        yield opened


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
