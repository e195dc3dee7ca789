"""What an answer amounts to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from envs.types import ToolSpec
from online_agent.gateway.answer_kinds import answer_kind
from online_agent.gateway.answer_reader import AnswerText
from online_agent.gateway.calls import ChatCall, Finish, ToolChoice
from online_agent.gateway.markup import Called
from online_agent.gateway.sampler import SampledChoice
from online_agent.types import AnswerKind, Generation, ToolCall
from tests.fakes.gateway import READ_FILE, ClientDesk, call_text

TOOLS = [ToolSpec("read_file", "", {})]
CALL = Called(0, "call_1", "read_file", "{}")


def kind(
    text: str,
    *calls: Called,
    tools: list[ToolSpec] = TOOLS,
    mode: str = "auto",
    finish: Finish = "stop",
    unread: Sequence[ToolCall] = (),
) -> AnswerKind | None:
    call = ChatCall("chat", "m", [], tools, ToolChoice(mode))  # type: ignore[arg-type]
    generation = Generation(np.zeros(1, np.int32), np.zeros(1, np.float32), (), "stop", 1)
    return answer_kind(
        call, SampledChoice(generation, AnswerText(text, calls=list(calls), unread=list(unread)), finish, [], 0.1)
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I'm sorry, but I can't help with that.", AnswerKind.REFUSAL),
        ("Sorry, I cannot assist with this request.", AnswerKind.REFUSAL),
        ("I’m unable to open the file.", AnswerKind.REFUSAL),
        ("As an AI, I am not able to do this.", AnswerKind.REFUSAL),
        ("The test cannot pass because the sign is wrong.", AnswerKind.TEXT),
        ("Done. I changed the sign, which I can't help but like.", AnswerKind.TEXT),
        ("  \n", AnswerKind.EMPTY),
        ("fixed", AnswerKind.TEXT),
        ('<tool_call>\n{"name": "read_file", "argum', AnswerKind.BROKEN_CALL),
        ("x</tool_call>", AnswerKind.BROKEN_CALL),
    ],
)
def test_an_answer_without_a_call(text: str, expected: AnswerKind) -> None:
    assert kind(text) is expected


def test_a_call_is_a_call_unless_another_one_beside_it_is_broken() -> None:
    assert kind("let me see", CALL) is AnswerKind.CALL
    assert kind("<tool_call>{", CALL) is AnswerKind.BROKEN_CALL


def test_a_call_in_another_familys_form_is_broken_where_the_reader_says_so() -> None:
    assert kind("[TOOL_CALLS] [{") is AnswerKind.TEXT
    assert kind("[TOOL_CALLS] [{", unread=[ToolCall("", error="cannot be read")]) is AnswerKind.BROKEN_CALL


def test_where_no_call_was_wanted_none_is_broken() -> None:
    assert kind("<tool_call>{", tools=[]) is AnswerKind.TEXT
    assert kind("<tool_call>{", mode="none") is AnswerKind.TEXT


@pytest.mark.parametrize("finish", ["length", "cancelled"])
def test_an_answer_that_was_cut_off_says_nothing(finish: Finish) -> None:
    assert kind("<tool_call>{", finish=finish) is None


async def test_answers_are_counted_by_version_and_told_as_metrics(desk: ClientDesk) -> None:
    desk.say(call_text("read_file", path="a"), "<tool_call>{broken</tool_call>", "nothing to do", "hello")
    for number in range(3):
        await desk.answer([{"role": "user", "content": f"task {number}"}], tools=[READ_FILE])
    await desk.answer([{"role": "user", "content": "hi"}])
    metrics = (await desk.http.get("/metrics")).text
    assert 'online_agent_answers{share="broken_call",version="1"} 3.0' in metrics
    assert 'online_agent_answers{share="refusal",version="1"} 4.0' in metrics
    assert f'online_agent_answers_share{{share="no_op",version="1"}} {1 / 3}' in metrics
