"""A client's call is one trace: its request, the engine's answer, and what is stored to go on from."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from opentelemetry.trace import SpanKind, StatusCode
from sqlalchemy import text

from tests.fakes.gateway import READ_FILE, ClientDesk, call_text, open_desk
from tests.fakes.tracing import Spans, is_child, kept_spans, trace_of

SECRET = "the eagle lands at noon"
USER = {"role": "user", "content": SECRET}
CLIENTS_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{CLIENTS_TRACE}-00f067aa0ba902b7-01"
CHAT = "chat online-agent"
SERVER = "POST /v1/chat/completions"


@pytest.fixture
def spans() -> Iterator[Spans]:
    with kept_spans() as kept:
        yield kept


@pytest.fixture
async def desk(spans: Spans, tmp_path: Path, model_dirs: dict[int, Path]) -> AsyncIterator[ClientDesk]:
    async with open_desk(tmp_path, model_dirs[1]) as opened:
        yield opened


def stored_traces(desk: ClientDesk, episode: str) -> list[str | None]:
    with desk.world.db.reading() as tx:
        episode_id = desk.client_episode(episode).id
        query = text("SELECT traceparent FROM completions WHERE episode_id = :id ORDER BY turn")
        return list(tx.connection.execute(query, {"id": episode_id}).scalars())


async def test_a_call_goes_on_in_the_clients_trace_and_the_answer_names_it(desk: ClientDesk, spans: Spans) -> None:
    desk.say("done")
    answer = await desk.http.post(
        "/v1/chat/completions",
        json={"model": "online-agent", "messages": [USER], "temperature": 0.5, "max_tokens": 64, "seed": 7},
        headers={"traceparent": TRACEPARENT, "X-Episode-Id": "task"},
    )
    server, chat = spans.named(SERVER), spans.named(CHAT)
    assert answer.headers["x-trace-id"] == trace_of(server) == trace_of(chat) == CLIENTS_TRACE
    assert is_child(chat, server)
    assert (server.kind, chat.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    assert dict(chat.attributes or {}) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "sglang",
        "gen_ai.request.model": "online-agent",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.seed": 7,
        "gen_ai.conversation.id": desk.client_episode("task").id,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.id": answer.json()["id"],
        "gen_ai.response.model": "online-agent@1",
        "gen_ai.usage.input_tokens": len(desk.prompts()[0]),
        "gen_ai.usage.output_tokens": len(desk.actions("task")[0]),
        "gen_ai.usage.cache_read.input_tokens": 0,
        "online_agent.weight_versions": (1,),
    }
    assert server.attributes is not None
    assert server.attributes["online_agent.episode.id"] == desk.client_episode("task").id
    assert server.attributes["http.response.status_code"] == 200


async def test_each_answer_remembers_the_trace_of_its_request(desk: ClientDesk, spans: Spans) -> None:
    desk.say("one", "two")
    first = await desk.chat([USER], "task")
    history = [USER, first.json()["choices"][0]["message"], USER]
    second = await desk.chat(history, "task")
    traces = [answer.headers["x-trace-id"] for answer in (first, second)]
    assert len(set(traces)) == 2
    stored = stored_traces(desk, "task")
    assert [parent and parent.split("-")[1] for parent in stored] == traces
    servers = [span for span in spans.all() if span.name == SERVER]
    assert [parent and parent.split("-")[2] for parent in stored] == [f"{s.context.span_id:016x}" for s in servers]


async def test_no_text_of_a_call_is_in_its_trace(desk: ClientDesk, spans: Spans) -> None:
    desk.say(call_text("read_file", path=SECRET))
    answer = await desk.answer([USER], "task", tools=[READ_FILE])
    assert json.loads(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == {"path": SECRET}
    assert spans.named(CHAT).attributes is not None
    assert SECRET not in spans.text()
    assert "eagle" not in spans.text()


async def test_a_stream_is_one_span_to_its_last_chunk(desk: ClientDesk, spans: Spans) -> None:
    desk.say("done")
    response = await desk.chat([USER], "task", stream=True)
    chat, server = spans.named(CHAT), spans.named(SERVER)
    assert response.headers["x-trace-id"] == trace_of(server)
    assert chat.attributes is not None
    assert chat.attributes["gen_ai.request.stream"] is True
    assert server.end_time is not None
    assert chat.end_time is not None
    assert server.end_time >= chat.end_time


async def test_an_engine_that_breaks_off_marks_the_answer_failed(desk: ClientDesk, spans: Spans) -> None:
    desk.say("never ends", breaks_after=1)
    await desk.chat([USER], "task", stream=True)
    chat = spans.named(CHAT)
    assert chat.status.status_code is StatusCode.ERROR
    assert chat.attributes is not None
    assert chat.attributes["error.type"] == "EngineProtocolError"


async def test_a_refusal_names_its_trace_too(desk: ClientDesk, spans: Spans) -> None:
    refused = await desk.http.post(
        "/v1/chat/completions", json={}, headers={"Authorization": "Bearer wrong", "traceparent": TRACEPARENT}
    )
    assert refused.status_code == 401
    assert refused.headers["x-trace-id"] == CLIENTS_TRACE


async def test_probes_make_no_spans(desk: ClientDesk, spans: Spans) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        await desk.http.get(path)
    assert spans.names() == []


async def test_a_trace_that_the_client_does_not_keep_leaves_nothing(desk: ClientDesk, spans: Spans) -> None:
    desk.say("done")
    answer = await desk.http.post(
        "/v1/chat/completions",
        json={"model": "online-agent", "messages": [USER]},
        headers={"traceparent": f"{TRACEPARENT[:-2]}00", "X-Episode-Id": "task"},
    )
    assert answer.headers["x-trace-id"] == CLIENTS_TRACE
    assert spans.all() == []
    assert stored_traces(desk, "task") == [None]
