"""An answer held to a JSON schema: the engine's grammar gets it, and what was sampled under it is not trained on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from online_agent.config.serving import EngineSettings
from online_agent.gateway.capture import UNDER_GRAMMAR
from tests.fakes.gateway import MODEL, READ_FILE, ClientDesk, open_desk

USER = {"role": "user", "content": "which one"}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}
TEXT_FORMAT = {"type": "json_schema", "name": "answer", "schema": SCHEMA}
REFUSED = {"type": "abort", "message": "Failed to compile json grammar", "status_code": 400, "err_type": "BadRequest"}


@pytest.fixture
async def held(tmp_path: Path, model_dirs: dict[int, Path]) -> AsyncIterator[ClientDesk]:
    """A client of a service whose engine has a grammar."""
    async with open_desk(tmp_path, model_dirs[1], engine=EngineSettings(grammar_backend="xgrammar")) as opened:
        yield opened


def asked_schema(desk: ClientDesk) -> Any:
    """What the last call held the engine to."""
    text = desk.engine.bodies("/generate")[-1]["sampling_params"].get("json_schema")
    return text and orjson.loads(text)


async def test_a_schema_reaches_the_engine_and_the_answer_is_not_trained_on(held: ClientDesk) -> None:
    held.say('{"n": 3}')
    answer = await held.answer([USER], "task", response_format=FORMAT)
    assert orjson.loads(answer["choices"][0]["message"]["content"]) == {"n": 3}
    assert asked_schema(held) == SCHEMA
    [stored] = held.completions("task")
    assert stored.untrainable_reason == UNDER_GRAMMAR
    assert held.training_rows("task") == []
    assert held.client_episode("task").num_kept_tokens == 0


async def test_the_rest_of_the_episode_is_trained_on(held: ClientDesk) -> None:
    held.say('{"n": 3}', "fine")
    first = await held.answer([USER], "task", response_format=FORMAT)
    history = [USER, first["choices"][0]["message"], {"role": "user", "content": "why"}]
    await held.answer(history, "task")
    [row] = held.training_rows("task")
    assert row.num_action_tokens == len(held.actions("task")[1])


async def test_any_object_is_a_schema_too(held: ClientDesk) -> None:
    held.say("{}")
    await held.answer([USER], response_format={"type": "json_object"})
    assert asked_schema(held) == {"type": "object"}


async def test_text_asks_for_no_grammar(held: ClientDesk) -> None:
    held.say("free")
    await held.answer([USER], "task", response_format={"type": "text"})
    assert asked_schema(held) is None
    assert held.completions("task")[0].untrainable_reason is None


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_the_responses_protocol_asks_in_its_own_field(held: ClientDesk, is_streamed: bool) -> None:
    held.say('{"n": 3}')
    body = {"model": MODEL, "input": "which one", "text": {"format": TEXT_FORMAT}, "stream": is_streamed}
    response = await held.post("/v1/responses", body)
    assert response.status_code == 200, response.text
    assert asked_schema(held) == SCHEMA


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"response_format": {"type": "xml"}}, "no format of answers"),
        ({"response_format": {"type": "json_schema"}}, "needs a schema"),
        ({"response_format": FORMAT, "tools": [READ_FILE]}, "tools exclude each other"),
    ],
)
async def test_what_cannot_be_held_to_is_refused_by_name(held: ClientDesk, body: dict[str, Any], why: str) -> None:
    response = await held.chat([USER], **body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "response_format")
    assert why in error["message"]
    assert held.prompts() == []


async def test_a_schema_has_a_size(held: ClientDesk) -> None:
    schema = {**SCHEMA, "description": "x" * 70_000}
    response = await held.chat([USER], response_format={"type": "json_schema", "json_schema": {"schema": schema}})
    assert response.status_code == 413
    assert response.json()["error"]["param"] == "response_format"


async def test_tools_that_may_not_be_called_leave_room_for_a_format(held: ClientDesk) -> None:
    held.say('{"n": 3}')
    await held.answer([USER], response_format=FORMAT, tools=[READ_FILE], tool_choice="none")
    assert asked_schema(held) == SCHEMA


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [USER], "response_format": FORMAT}, "response_format"),
        ("/v1/chat/completions", {"messages": [USER], "response_format": {"type": "json_object"}}, "response_format"),
        ("/v1/responses", {"input": "which one", "text": {"format": TEXT_FORMAT}}, "text.format"),
    ],
)
async def test_without_a_grammar_a_format_is_refused_and_the_setting_is_named(
    desk: ClientDesk, path: str, body: dict[str, Any], param: str
) -> None:
    response = await desk.post(path, {"model": MODEL, **body})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert "engine.grammar_backend" in error["message"]
    assert desk.prompts() == []


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_schema_that_the_engine_refuses_is_the_callers_fault(held: ClientDesk, is_streamed: bool) -> None:
    held.say_ids([], raw={"finish_reason": REFUSED})
    response = await held.chat([USER], stream=is_streamed, response_format=FORMAT)
    assert "response_format: the engine cannot follow this schema" in response.text
    assert response.status_code == (200 if is_streamed else 400)
    assert held.engine.url not in response.text
