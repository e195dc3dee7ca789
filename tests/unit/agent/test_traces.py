"""An episode is one span in the trace of its request, with its answers and tools below it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.trace import StatusCode

from online_agent.telemetry import tracing
from tests.fakes.tracing import Spans, is_child, kept_spans, trace_of
from tests.unit.agent.conftest import Desk, call_text

SECRET = "the eagle lands at noon"
SAMPLED = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
AGENT, CHAT = "invoke_agent online-agent", "chat online-agent"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with kept_spans() as kept:
        yield kept


async def test_answers_and_tools_are_below_their_episode(spans: Spans, desk: Desk) -> None:
    desk.say(call_text("list_files"), call_text("submit"))
    with tracing.span("request", parent=SAMPLED):
        episode_id = await desk.start()
    record = await desk.ended(episode_id)
    agent, request = spans.named(AGENT), spans.named("request")
    assert trace_of(agent) == trace_of(request)
    assert is_child(agent, request)
    below = [span for span in spans.all() if is_child(span, agent)]
    assert [span.name for span in below] == [CHAT, "execute_tool list_files", CHAT, "execute_tool submit"]
    assert agent.attributes is not None
    assert agent.attributes["gen_ai.conversation.id"] == record.id
    assert agent.attributes["online_agent.stop_reason"] == "submitted"
    tool = dict(spans.named("execute_tool list_files").attributes or {})
    assert tool == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "list_files",
        "gen_ai.tool.type": "function",
    }


async def test_a_tool_that_is_not_offered_keeps_its_name_to_itself(spans: Spans, desk: Desk) -> None:
    desk.say(call_text(SECRET), call_text("submit"))
    await desk.run()
    tool = spans.named("execute_tool unknown")
    assert tool.status.status_code is StatusCode.ERROR
    assert tool.attributes is not None
    assert tool.attributes["error.type"] == "tool_error"
    assert SECRET not in spans.text()


async def test_an_outage_marks_the_answer_and_the_reason(spans: Spans, desk: Desk) -> None:
    desk.say("never", raw={"output_token_logprobs": None, "output_ids": None})
    record = await desk.run()
    agent = spans.named(AGENT)
    assert agent.attributes is not None
    assert agent.attributes["online_agent.stop_reason"] == str(record.stop_reason)


async def test_two_requests_are_two_traces(spans: Spans, desk: Desk) -> None:
    desk.say("no call", "no call")
    for _ in range(2):
        await desk.run()
    agents = [span for span in spans.all() if span.name == AGENT]
    assert len({trace_of(span) for span in agents}) == 2
