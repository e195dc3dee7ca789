"""Calls repeated under one ``Idempotency-Key``: one answer, one turn."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.fakes.api import on_a_port
from tests.fakes.gateway import MODEL, READ_FILE, ClientDesk, call_text, events_of

USER = {"role": "user", "content": "fix it"}
BODY = {"model": MODEL, "messages": [USER], "max_tokens": 64, "tools": [READ_FILE], "logprobs": True}
KEY = {"Idempotency-Key": "k1", "X-Episode-Id": "task"}
SAID = "<think>hm</think>I look. " + call_text("read_file", path="a.py")


async def test_a_repeat_gets_the_answer_that_was_given(desk: ClientDesk) -> None:
    desk.say(SAID)
    first = await desk.post("/v1/chat/completions", BODY, **KEY)
    second = await desk.post("/v1/chat/completions", BODY, **KEY)
    assert second.headers["Idempotent-Replay"] == "true"
    one, other = first.json(), second.json()
    assert {**one, "created": 0} == {**other, "created": 0}
    assert len(desk.prompts()) == desk.record("task").num_turns == 1


async def test_a_repeat_may_be_streamed_again(desk: ClientDesk) -> None:
    desk.say(SAID)
    body = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
    texts, usages = [], []
    for _ in range(2):
        events = events_of((await desk.post("/v1/chat/completions", body, **KEY)).text)
        assert events.pop() == "[DONE]"
        deltas = [part["delta"] for event in events for part in event["choices"]]
        texts.append("".join(delta.get("content") or "" for delta in deltas))
        usages.append((events[-1]["usage"], events[-1]["receipt"]))
    assert texts == ["I look.", "I look."]
    assert usages[0] == usages[1]
    assert len(desk.prompts()) == 1


async def test_another_body_under_the_same_key_is_409(desk: ClientDesk) -> None:
    desk.say("a")
    await desk.post("/v1/chat/completions", BODY, **KEY)
    other = await desk.post("/v1/chat/completions", {**BODY, "max_tokens": 5}, **KEY)
    assert (other.status_code, other.json()["error"]["param"]) == (409, "Idempotency-Key")


async def test_twins_at_the_same_time_are_one_turn(desk: ClientDesk) -> None:
    desk.say("hello", delay_s=0.3)
    one, other = await asyncio.gather(*(desk.post("/v1/chat/completions", BODY, **KEY) for _ in range(2)))
    assert one.json()["id"] == other.json()["id"]
    assert desk.record("task").num_turns == 1


async def test_the_answer_is_finished_for_a_client_that_gave_up_and_asks_again(desk: ClientDesk) -> None:
    """C22: an answer delayed past the client's time-out is not sampled twice."""
    desk.say("hello", delay_s=0.6)
    async with on_a_port(desk.world) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/chat/completions", json=BODY, headers=KEY, timeout=0.2)
        answer: dict[str, Any] = (await client.post("/v1/chat/completions", json=BODY, headers=KEY)).json()
    assert answer["choices"][0]["message"]["content"] == "hello"
    assert not desk.completions("task")[0].is_cut_short
    assert (desk.record("task").num_turns, len(desk.prompts())) == (1, 1)


async def test_a_call_that_failed_frees_its_key(desk: ClientDesk) -> None:
    desk.engine.faults.extend(["error_500"] * 8)
    failed = await desk.post("/v1/chat/completions", BODY, **KEY)
    assert failed.status_code == 503
    desk.engine.faults.clear()
    desk.say("hello")
    assert (await desk.post("/v1/chat/completions", BODY, **KEY)).status_code == 200


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_the_other_protocols_repeat_too(desk: ClientDesk, path: str) -> None:
    desk.say("hello")
    body = (
        {"model": MODEL, "max_tokens": 9, "messages": [USER]} if "messages" in path else {"model": MODEL, "input": "x"}
    )
    answers = [(await desk.post(path, body, **KEY)).json() for _ in range(2)]
    for answer in answers:
        answer.pop("created_at", None)
    assert answers[0] == answers[1]
    assert len(desk.prompts()) == 1
