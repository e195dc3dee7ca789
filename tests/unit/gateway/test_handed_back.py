"""An answer is never refused when its client hands it back, whatever was sampled; the ids stay as they were."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.gateway import MODEL, READ_FILE, ClientDesk, events_of

NUL_ANSWER = "<think>a\x00b</think>c\x00d"
NUL_CALL = '<tool_call>\n{"name": "read_file", "arguments": {"path": "e\\u0000f"}}\n</tool_call>'
USER = {"role": "user", "content": "fix it"}
CLAUDE_TOOL = {"name": "read_file", "input_schema": {"type": "object"}}


def assert_continued(desk: ClientDesk) -> None:
    """The second prompt goes on from the sampled ids of the first answer."""
    stored = desk.prompts()[0] + desk.actions("task")[0]
    assert desk.prompts()[1][: len(stored)] == stored


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_nul_in_a_chat_answer_is_replaced_and_the_history_matches(desk: ClientDesk, is_streamed: bool) -> None:
    desk.say(NUL_ANSWER + NUL_CALL, "done")
    asked = {"messages": [USER], "tools": [READ_FILE]}
    body = {"model": MODEL, "max_tokens": 256, **asked, "stream": is_streamed}
    response = await desk.post("/v1/chat/completions", body, **{"X-Episode-Id": "task"})
    if is_streamed:
        deltas = [c["choices"][0]["delta"] for c in events_of(response.text)[:-1] if c["choices"]]
        text = "".join(delta.get("content") or "" for delta in deltas)
        thought = "".join(delta.get("reasoning_content") or "" for delta in deltas)
        calls = [{k: v for k, v in call.items() if k != "index"} for d in deltas for call in d.get("tool_calls", [])]
    else:
        message = response.json()["choices"][0]["message"]
        text, thought, calls = message["content"], message["reasoning_content"], message["tool_calls"]
    assert (text, thought) == ("c\ufffdd", "a\ufffdb")
    assert calls[0]["function"]["arguments"] == '{"path":"e\ufffdf"}'
    result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "x"}
    answer = {"role": "assistant", "content": text, "reasoning_content": thought, "tool_calls": calls}
    await desk.answer([USER, answer, result], "task", tools=[READ_FILE])
    assert_continued(desk)
    sampled = b"".join(map(desk.renderer.encoder.token_bytes, desk.actions("task")[0]))
    assert sampled.count(b"\x00") == 2


async def test_nul_in_an_anthropic_answer_is_replaced_and_the_history_matches(desk: ClientDesk) -> None:
    desk.say(NUL_ANSWER + NUL_CALL, "done")
    ask: dict[str, Any] = {"model": MODEL, "max_tokens": 256, "tools": [CLAUDE_TOOL]}
    first = await desk.post("/v1/messages", {**ask, "messages": [USER]}, **{"X-Episode-Id": "task"})
    content = first.json()["content"]
    assert [block["type"] for block in content] == ["thinking", "text", "tool_use"]
    assert content[2]["input"] == {"path": "e\ufffdf"}
    result = {"type": "tool_result", "tool_use_id": content[2]["id"], "content": "x"}
    history = [USER, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    second = await desk.post("/v1/messages", {**ask, "messages": history}, **{"X-Episode-Id": "task"})
    assert second.status_code == 200, second.text
    assert_continued(desk)


@pytest.mark.parametrize(
    "call",
    [
        '<tool_call>{"name": "%s", "arguments": {}}</tool_call>' % ("a" * 300),
        '<tool_call>{"name": "a", "arguments": {"x": %s}}</tool_call>' % ("[" * 300 + "]" * 300),
    ],
)
async def test_a_call_that_no_history_can_hold_stays_text(desk: ClientDesk, call: str) -> None:
    desk.say(call, "done")
    answer = await desk.answer([USER], "task", tools=[READ_FILE], max_tokens=900)
    message = answer["choices"][0]["message"]
    assert message["content"] == call
    assert "tool_calls" not in message
    await desk.answer([USER, message, USER], "task", tools=[READ_FILE])
