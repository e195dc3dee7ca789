"""The official OpenAI and Anthropic libraries against this service: only the address and the key are ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from anthropic import Anthropic
from openai import OpenAI

from online_agent.types import EpisodeStatus
from tests.fakes.api import on_a_port
from tests.fakes.gateway import READ_FILE, ClientDesk, call_text, open_desk, row_text
from tests.sdk_agents import anthropic_agent, openai_agent

FILES = {"a.py": "x = 1"}
CLAUDE_READ_FILE = {
    "name": "read_file",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
}


@pytest.fixture
async def desk(tmp_path: Path, model_dirs: dict[int, Path]) -> AsyncIterator[ClientDesk]:
    async with open_desk(tmp_path, model_dirs[1]) as opened:
        yield opened


@pytest.fixture
async def url(desk: ClientDesk) -> AsyncIterator[str]:
    async with on_a_port(desk.world) as client:
        yield str(client.base_url)


def openai_client(desk: ClientDesk, url: str, who: str = "agent", **options: Any) -> OpenAI:
    http = httpx.Client(trust_env=False)
    return OpenAI(base_url=f"{url}/v1", api_key=desk.world.secrets[who], http_client=http, **options)


def anthropic_client(desk: ClientDesk, url: str, **options: Any) -> Anthropic:
    return Anthropic(
        base_url=url, api_key=desk.world.secrets["agent"], http_client=httpx2.Client(trust_env=False), **options
    )


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_openai_agent_solves_its_task_and_is_recorded_as_one_segment(
    desk: ClientDesk, url: str, is_streamed: bool
) -> None:
    two_calls = "I look. " + call_text("read_file", path="a.py") + call_text("read_file", path="b.py")
    desk.say(two_calls, "x is 1")
    read: list[tuple[str, str]] = []

    def run(name: str, arguments: str) -> str:
        read.append((name, arguments))
        return FILES.get("a.py", "")

    client = openai_client(desk, url, default_headers={"X-Episode-Id": "task"})
    messages = await asyncio.to_thread(
        openai_agent.solve, client, "what is x?", [READ_FILE], run, is_streamed=is_streamed, max_tokens=200
    )
    assert read == [("read_file", '{"path":"a.py"}'), ("read_file", '{"path":"b.py"}')]
    assert messages[-1]["content"] == "x is 1"
    [row] = desk.training_rows("task")
    assert row_text(desk.renderer, row, actions_only=True) == f"{two_calls}<|im_end|>x is 1<|im_end|>"
    client.close()


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_anthropic_agent_solves_its_task_and_is_recorded_as_one_segment(
    desk: ClientDesk, url: str, is_streamed: bool
) -> None:
    said = "I look. " + call_text("read_file", path="a.py")
    desk.say(said, "x is 1")
    client = anthropic_client(desk, url, default_headers={"X-Episode-Id": "task"})
    messages = await asyncio.to_thread(
        anthropic_agent.solve,
        client,
        "what is x?",
        [CLAUDE_READ_FILE],
        lambda name, arguments: FILES[arguments["path"]],
        is_streamed=is_streamed,
        max_tokens=200,
    )
    assert messages[-1]["content"][0].text == "x is 1"
    [row] = desk.training_rows("task")
    assert row_text(desk.renderer, row, actions_only=True) == f"{said}<|im_end|>x is 1<|im_end|>"
    client.close()


async def test_receipts_and_feedback_through_the_openai_library(desk: ClientDesk, url: str) -> None:
    desk.say("hello", "hello")
    client = openai_client(desk, url)

    def use() -> tuple[Any, Any, list[Any]]:
        ask = {"model": "online-agent", "messages": [{"role": "user", "content": "hi"}]}
        raw = client.chat.completions.with_raw_response.create(**ask)
        answer = raw.parse()
        with_headers = {**ask, "extra_headers": {"X-Episode-Id": raw.headers["X-Episode-Id"]}, "stream": True}
        chunks = list(client.chat.completions.create(**with_headers, stream_options={"include_usage": True}))
        return raw, answer, chunks

    raw, answer, chunks = await asyncio.to_thread(use)
    assert raw.headers["X-Receipt"] == answer.id
    assert answer.receipt["episode_id"] == raw.headers["X-Episode-Id"] == chunks[-1].receipt["episode_id"]
    assert chunks[-1].usage.completion_tokens == 2
    given = await desk.post(f"/v1/episodes/{chunks[-1].id}/feedback", {"reward": 1.0, "source": "user"})
    assert given.json()["fate"] == "accepted"
    await desk.post(f"/v1/episodes/{raw.headers['X-Episode-Id']}/close", {})
    assert desk.record(raw.headers["X-Episode-Id"]).status is EpisodeStatus.GRADED
    client.close()


async def test_the_responses_api_through_the_openai_library(desk: ClientDesk, url: str) -> None:
    desk.say("hello", "done")
    client = openai_client(desk, url)

    def use() -> tuple[Any, list[Any]]:
        first = client.responses.create(model="online-agent", input="hi")
        stream = client.responses.create(
            model="online-agent", input="go on", previous_response_id=first.id, stream=True
        )
        return first, list(stream)

    first, events = await asyncio.to_thread(use)
    assert first.output_text == "hello"
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == "done"
    assert desk.client_episode(first.receipt["episode_id"]).num_turns == 2
    client.close()


async def test_models_through_both_libraries(desk: ClientDesk, url: str) -> None:
    client = openai_client(desk, url)
    models = await asyncio.to_thread(lambda: [model.id for model in client.models.list()])
    assert models == ["online-agent"]
    client.close()


async def test_errors_become_the_libraries_own_exceptions(desk: ClientDesk, url: str) -> None:
    ask = {"model": "gpt-5", "messages": [{"role": "user", "content": "hi"}]}
    wrong_key = openai_client(desk, url, who="operator", max_retries=0)
    client, claude = openai_client(desk, url, max_retries=0), anthropic_client(desk, url, max_retries=0)

    def use() -> None:
        with pytest.raises(openai.NotFoundError, match="gpt-5") as missing:
            client.chat.completions.create(**ask)
        assert missing.value.param == "model"
        with pytest.raises(openai.PermissionDeniedError):
            wrong_key.chat.completions.create(**{**ask, "model": "online-agent"})
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="online-agent", messages=ask["messages"], temperature=5)
        with pytest.raises(anthropic.NotFoundError, match="claude"):
            claude.messages.create(model="claude", max_tokens=5, messages=ask["messages"])

    await asyncio.to_thread(use)
    for each in (client, claude, wrong_key):
        each.close()


async def test_a_broken_stream_raises_in_both_libraries(desk: ClientDesk, url: str) -> None:
    desk.say("hello hello hello", breaks_after=1)
    desk.say("hello hello hello", breaks_after=1)
    client, claude = openai_client(desk, url, max_retries=0), anthropic_client(desk, url, max_retries=0)

    def use() -> None:
        ask: Any = {"model": "online-agent", "messages": [{"role": "user", "content": "hi"}]}
        with pytest.raises(openai.APIError, match="without its end"):
            list(client.chat.completions.create(**ask, stream=True))
        with pytest.raises(anthropic.APIError, match="without its end"):
            list(claude.messages.create(**ask, max_tokens=50, stream=True))

    await asyncio.to_thread(use)
    client.close()
    claude.close()
