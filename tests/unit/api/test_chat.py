"""``/v1/chat/completions`` as an OpenAI client meets it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gateway import MODEL, READ_FILE, RUN_TESTS, ClientDesk, call_text, open_desk

USER = {"role": "user", "content": "fix src/calc.py"}


@pytest.fixture
async def desk(tmp_path: Path, model_dirs: dict[int, Path]) -> AsyncIterator[ClientDesk]:
    async with open_desk(tmp_path, model_dirs[1]) as opened:
        yield opened


async def test_an_answer_has_the_shape_clients_know(desk: ClientDesk) -> None:
    desk.say("hello")
    response = await desk.chat([USER])
    answer = response.json()
    assert (answer["object"], answer["model"]) == ("chat.completion", MODEL)
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    episode = response.headers["X-Episode-Id"]
    assert response.headers["X-Receipt"] == answer["id"]
    assert answer["receipt"] == {"completion_id": answer["id"], "episode_id": episode, "turn": 0, "weight_version": 1}


async def test_usage_is_what_is_stored(desk: ClientDesk) -> None:
    desk.say("hello")
    answer = await desk.answer([USER], "task")
    spans = desk.spans("task")[0]
    sampled = desk.actions("task")[0]
    num_prompt = sum(len(span.token_ids) for span in spans) - len(sampled)
    assert answer["usage"]["prompt_tokens"] == num_prompt == len(desk.prompts()[0])
    assert answer["usage"]["completion_tokens"] == len(sampled) == desk.record("task").num_action_tokens
    assert answer["usage"]["total_tokens"] == num_prompt + len(sampled)
