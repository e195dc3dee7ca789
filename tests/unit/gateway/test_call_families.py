"""A model that writes its tool calls in another form than Hermes, behind the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from online_agent.config.serving import GatewaySettings
from tests.fakes.gateway import READ_FILE, RUN_TESTS, ClientDesk, open_desk

USER = {"role": "user", "content": "fix it"}
TOOLS = [READ_FILE, RUN_TESTS]
READ = '{"name": "read_file", "parameters": {"path": "a.py"}}'
RUN = '{"name": "run_tests", "parameters": {}}'


@pytest.fixture
async def llama(tmp_path: Path, model_dirs: dict[int, Path]) -> AsyncIterator[ClientDesk]:
    settings = GatewaySettings(engine_wait_s=0.5, tool_call_family="llama3")
    async with open_desk(tmp_path, model_dirs[1], gateway=settings) as opened:
        yield opened


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_calls_come_from_the_engines_parser_and_the_history_continues_the_sampled_ids(
    llama: ClientDesk, is_streamed: bool
) -> None:
    llama.say(f"I look. <|python_tag|>{READ};{RUN}", "done")
    ask = {"tools": TOOLS, "max_tokens": 200}
    if is_streamed:
        parts = [chunk["choices"][0] for chunk in await llama.chunks([USER], "task", **ask)]
        text = "".join(part["delta"].get("content") or "" for part in parts)
        calls = [call for part in parts for call in part["delta"].get("tool_calls", [])]
        finish = parts[-1]["finish_reason"]
    else:
        choice = (await llama.answer([USER], "task", **ask))["choices"][0]
        text, finish, calls = choice["message"]["content"], choice["finish_reason"], choice["message"]["tool_calls"]
    assert (text, finish) == ("I look.", "tool_calls")
    assert [(c["function"]["name"], c["function"]["arguments"]) for c in calls] == [
        ("read_file", '{"path":"a.py"}'),
        ("run_tests", "{}"),
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "x"} for call in calls]
    history = [USER, {"role": "assistant", "content": text, "tool_calls": calls}, *results]
    await llama.answer(history, "task", tools=TOOLS)
    stored = llama.prompts()[0] + llama.actions("task")[0]
    assert llama.prompts()[1][: len(stored)] == stored
    [parsed] = llama.engine.bodies("/parse_function_call")
    assert parsed["text"] == f"<|python_tag|>{READ};{RUN}"
    assert [tool["function"]["name"] for tool in parsed["tools"]] == ["read_file", "run_tests"]


async def test_a_call_that_was_cut_off_runs_nothing_and_stays_text(llama: ClientDesk) -> None:
    llama.say(f"<|python_tag|>{READ[:-8]}", ends=False, finish_reason="length")
    [choice] = (await llama.answer([USER], "task", tools=TOOLS, max_tokens=200))["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"] == f"<|python_tag|>{READ[:-8]}"
    assert "tool_calls" not in choice["message"]
    assert llama.engine.bodies("/parse_function_call") == []
    with llama.world.db.reading() as tx:
        [turn] = tx.episodes.turns(llama.client_episode("task").id)
    assert [call.error for call in turn.tool_calls] == ["the parser for llama3 cannot read it"]


async def test_a_parser_that_fails_is_asked_again(llama: ClientDesk) -> None:
    llama.say(f"<|python_tag|>{READ}")
    llama.engine.faults.append("parser_500")
    [choice] = (await llama.answer([USER], "task", tools=TOOLS, max_tokens=200))["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "read_file"


async def test_an_answer_without_calls_asks_no_parser(llama: ClientDesk) -> None:
    llama.say("hello {}", READ)
    await llama.answer([USER], tools=TOOLS)
    await llama.answer([USER])  # no tools, so what looks like a call is text
    assert llama.engine.bodies("/parse_function_call") == []


async def test_one_call_is_taken_where_only_one_may_be_made(llama: ClientDesk) -> None:
    llama.say(f"<|python_tag|>{READ};{RUN}")
    answer = await llama.answer([USER], tools=TOOLS, parallel_tool_calls=False, max_tokens=200)
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "read_file"


async def test_a_named_tool_begins_the_answer_in_the_familys_form(llama: ClientDesk) -> None:
    llama.say('{"path": "a.py"}}')
    choice = {"type": "function", "function": {"name": "read_file"}}
    answer = await llama.answer([USER], tools=TOOLS, tool_choice=choice)
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "read_file", "arguments": '{"path":"a.py"}'}
    assert llama.renderer.decode(llama.prompts()[0]).endswith('<|python_tag|>{"name": "read_file", "parameters": ')
