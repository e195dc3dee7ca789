"""``/v1/messages`` as an Anthropic client meets it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.gateway import MODEL, ClientDesk, call_text, events_of, row_text

USER = {"role": "user", "content": "fix it"}
READ_FILE = {
    "name": "read_file",
    "description": "Read a file.",
    "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
}


async def send(desk: ClientDesk, messages: list[Any], episode: str = "task", **body: Any) -> dict[str, Any]:
    whole = {"model": MODEL, "max_tokens": 64, "messages": messages, **body}
    response = await desk.post("/v1/messages", whole, **{"X-Episode-Id": episode})
    assert response.status_code == 200, response.text
    content: dict[str, Any] = response.json()
    return content


async def stream(desk: ClientDesk, messages: list[Any], episode: str = "task", **body: Any) -> list[Any]:
    whole = {"model": MODEL, "max_tokens": 64, "messages": messages, "stream": True, **body}
    response = await desk.post("/v1/messages", whole, **{"X-Episode-Id": episode})
    assert response.status_code == 200, response.text
    return events_of(response.text)


async def test_a_message_has_the_shape_clients_know(desk: ClientDesk) -> None:
    desk.say("hello")
    answer = await send(desk, [USER], system="be brief")
    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", MODEL)
    assert answer["content"] == [{"type": "text", "text": "hello"}]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("end_turn", None)
    assert answer["usage"]["input_tokens"] == len(desk.prompts()[0])
    assert answer["usage"]["output_tokens"] == len(desk.actions("task")[0])
    assert answer["receipt"]["turn"] == 0
    assert "<|im_start|>system\nbe brief<|im_end|>" in desk.renderer.decode(desk.prompts()[0])


async def test_a_tool_loop_continues_the_stored_ids(desk: ClientDesk) -> None:
    desk.say("I look. " + call_text("read_file", path="a.py"), "done")
    first = await send(desk, [USER], tools=[READ_FILE])
    assert first["stop_reason"] == "tool_use"
    text, use = first["content"]
    assert text == {"type": "text", "text": "I look."}
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "read_file", {"path": "a.py"})
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": "x = 1"}]}
    history = [USER, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
    await send(desk, history, tools=[READ_FILE])
    stored = desk.prompts()[0] + desk.actions("task")[0]
    assert desk.prompts()[1][: len(stored)] == stored
    [row] = desk.training_rows("task")
    assert "<tool_response>\nx = 1\n</tool_response>" in row_text(desk.renderer, row)


async def test_a_stream_opens_and_closes_a_block_for_each_part_and_ends_with_the_receipt(desk: ClientDesk) -> None:
    desk.say("<think>hm</think>I look. " + call_text("read_file", path="a.py"))
    events = await stream(desk, [USER], tools=[READ_FILE])
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    started = [e["content_block"]["type"] for e in events if e["type"] == "content_block_start"]
    assert started == ["thinking", "text", "tool_use"]
    assert [e["index"] for e in events if e["type"] == "content_block_stop"] == [0, 1, 2]
    said = "".join(e["delta"].get("text", "") for e in events if e["type"] == "content_block_delta")
    arguments = "".join(e["delta"].get("partial_json", "") for e in events if e["type"] == "content_block_delta")
    assert (said, arguments) == ("I look.", '{"path":"a.py"}')
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"]["output_tokens"] == len(desk.actions("task")[0])
    assert events[-1]["receipt"]["episode_id"] == desk.client_episode("task").id


async def test_a_streamed_answer_without_a_word_is_one_empty_block(desk: ClientDesk) -> None:
    desk.say("")
    kinds = [event["type"] for event in await stream(desk, [USER])]
    assert kinds[1:3] == ["content_block_start", "content_block_stop"]


@pytest.mark.parametrize(
    ("text", "body", "reason", "stop_sequence"),
    [
        ("hello world", {"max_tokens": 1}, "max_tokens", None),
        ("hello STOP", {"stop_sequences": ["STOP"]}, "stop_sequence", "STOP"),
    ],
)
async def test_why_an_answer_ended(
    desk: ClientDesk, text: str, body: dict[str, Any], reason: str, stop_sequence: str | None
) -> None:
    desk.say(text)
    answer = await send(desk, [USER], **body)
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, stop_sequence)


async def test_any_tool_and_a_named_tool_are_forced(desk: ClientDesk) -> None:
    desk.say('read_file", "arguments": {}}\n</tool_call>', "{}}\n</tool_call>")
    some = await send(desk, [USER], tools=[READ_FILE], tool_choice={"type": "any"})
    named = await send(desk, [USER, USER], tools=[READ_FILE], tool_choice={"type": "tool", "name": "read_file"})
    assert [answer["content"][0]["name"] for answer in (some, named)] == ["read_file", "read_file"]


async def test_thinking_that_is_handed_back_is_already_in_the_stored_ids(desk: ClientDesk) -> None:
    desk.say("<think>hm</think>\n\nhello", "done")
    first = await send(desk, [USER])
    assert [block["type"] for block in first["content"]] == ["thinking", "text"]
    await send(desk, [USER, {"role": "assistant", "content": first["content"]}, USER])
    assert desk.client_episode("task").num_segments == 1


async def test_one_episode_may_speak_both_protocols(desk: ClientDesk) -> None:
    desk.say("hello", "done")
    first = await send(desk, [USER])
    await desk.answer([USER, {"role": "assistant", "content": first["content"][0]["text"]}, USER], "task")
    assert desk.client_episode("task").num_segments == 1
    assert [c.protocol for c in desk.completions("task")] == ["messages", "chat"]


async def test_tokens_are_counted_as_they_will_be_sent(desk: ClientDesk) -> None:
    body = {"model": MODEL, "messages": [USER], "system": "be brief"}
    counted = (await desk.post("/v1/messages/count_tokens", body)).json()
    desk.say("hello")
    await send(desk, [USER], system="be brief")
    assert counted == {"input_tokens": len(desk.prompts()[0])}


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"model": "claude"}, 404, "not_found_error"),
        ({"max_tokens": 0}, 400, "invalid_request_error"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400, "invalid_request_error"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error"),
    ],
)
async def test_errors_have_the_shape_that_anthropics_clients_read(
    desk: ClientDesk, body: dict[str, Any], status: int, kind: str
) -> None:
    response = await desk.post("/v1/messages", {"model": MODEL, "max_tokens": 8, "messages": [USER], **body})
    assert response.status_code == status
    assert response.json()["type"] == "error"
    assert response.json()["error"]["type"] == kind


async def test_a_missing_key_and_an_engine_that_is_away_have_it_too(desk: ClientDesk) -> None:
    body = {"model": MODEL, "max_tokens": 8, "messages": [USER]}
    nobody = await desk.http.post("/v1/messages", json=body, headers={"Authorization": "Bearer wrong"})
    assert (nobody.status_code, nobody.json()["error"]["type"]) == (401, "authentication_error")
    desk.engine.faults.extend(["error_500"] * 50)
    away = await desk.post("/v1/messages", body)
    assert (away.status_code, away.json()["error"]["type"]) == (503, "overloaded_error")


async def test_a_stream_that_fails_says_so_in_an_error_event(desk: ClientDesk) -> None:
    desk.say("hello hello hello hello", breaks_after=2)
    events = await stream(desk, [USER])
    assert (events[-1]["type"], events[-1]["error"]["type"]) == ("error", "api_error")
