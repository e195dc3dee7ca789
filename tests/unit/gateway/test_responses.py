"""``/v1/responses`` as a client of OpenAI's newer protocol meets it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.gateway import MODEL, ClientDesk, call_text, events_of, row_text

READ_FILE = {"type": "function", "name": "read_file", "parameters": {"type": "object", "properties": {"path": {}}}}


async def send(desk: ClientDesk, sent: Any, episode: str | None = "task", status: int = 200, **body: Any) -> Any:
    headers = {} if episode is None else {"X-Episode-Id": episode}
    response = await desk.post("/v1/responses", {"model": MODEL, "input": sent, **body}, **headers)
    assert response.status_code == status, response.text
    return response.json()


async def test_a_response_has_the_shape_clients_know(desk: ClientDesk) -> None:
    desk.say("hello")
    answer = await send(desk, "2 + 2?", instructions="be brief")
    assert (answer["object"], answer["status"], answer["model"]) == ("response", "completed", MODEL)
    [item] = answer["output"]
    assert (item["type"], item["role"], item["content"][0]["text"]) == ("message", "assistant", "hello")
    assert answer["usage"]["input_tokens"] == len(desk.prompts()[0])
    assert answer["usage"]["output_tokens"] == len(desk.actions("task")[0])
    assert answer["receipt"]["turn"] == 0
    assert "be brief" in desk.renderer.decode(desk.prompts()[0])


async def test_a_tool_loop_continues_the_stored_ids(desk: ClientDesk) -> None:
    desk.say("<think>hm</think>I look. " + call_text("read_file", path="a.py"), "done")
    user = {"role": "user", "content": [{"type": "input_text", "text": "fix it"}]}
    first = await send(desk, [user], tools=[READ_FILE])
    assert [item["type"] for item in first["output"]] == ["reasoning", "message", "function_call"]
    call = first["output"][-1]
    assert (call["name"], call["arguments"]) == ("read_file", '{"path":"a.py"}')
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "x = 1"}
    await send(desk, [user, *first["output"], result], tools=[READ_FILE])
    assert desk.client_episode("task").num_segments == 1
    [row] = desk.training_rows("task")
    assert "<tool_response>\nx = 1\n</tool_response>" in row_text(desk.renderer, row)


async def test_an_answer_may_follow_an_earlier_one_by_its_id_alone(desk: ClientDesk) -> None:
    desk.say("hello", "done", "other")
    first = await send(desk, "fix it", episode=None)
    second = await send(desk, "go on", episode=None, previous_response_id=first["id"])
    third = await send(desk, "or else", episode=None, previous_response_id=first["id"])
    episode = first["receipt"]["episode_id"]
    assert [answer["receipt"]["episode_id"] for answer in (second, third)] == [episode, episode]
    stored = desk.prompts()[0] + desk.actions(episode)[0]
    assert desk.prompts()[1][: len(stored)] == stored
    assert [(c.segment, c.branched_from) for c in desk.completions(episode)] == [(0, None), (0, None), (1, 0)]


@pytest.mark.parametrize("who", ["all", "other"])
async def test_an_earlier_answer_that_is_unknown_or_anothers_is_404(desk: ClientDesk, who: str) -> None:
    desk.say("hello")
    first = await send(desk, "fix it")
    previous = "resp_unknown" if who == "all" else first["id"]
    body = {"model": MODEL, "input": "go", "previous_response_id": previous}
    response = await desk.http.post("/v1/responses", json=body, headers=desk.world.headers(who))
    assert (response.status_code, response.json()["error"]["param"]) == (404, "previous_response_id")


async def test_a_stream_tells_items_as_they_open_and_close_and_ends_with_the_whole(desk: ClientDesk) -> None:
    desk.say("I look. " + call_text("read_file", path="a.py"))
    body = {"model": MODEL, "input": "fix it", "tools": [READ_FILE], "stream": True}
    response = await desk.post("/v1/responses", body, **{"X-Episode-Id": "task"})
    events = events_of(response.text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * kinds.count("output_text.delta"),
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    whole = events[-1]["response"]
    assert [item["type"] for item in whole["output"]] == ["message", "function_call"]
    assert "".join(e["delta"] for e in events if e["type"].endswith("output_text.delta")) == "I look."
    assert whole["receipt"]["episode_id"] == desk.client_episode("task").id


async def test_an_answer_cut_by_its_limit_is_incomplete(desk: ClientDesk) -> None:
    desk.say("hello world hello world")
    answer = await send(desk, "fix it", max_output_tokens=2)
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


@pytest.mark.parametrize(
    "body",
    [
        {"tools": [{"type": "web_search"}]},
        {"input": [{"type": "computer_call"}]},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}},
        {"tool_choice": "required"},
    ],
)
async def test_what_cannot_be_followed_is_refused(desk: ClientDesk, body: dict[str, Any]) -> None:
    error = (await send(desk, **{"sent": "x", "status": 400, **_renamed(body)}))["error"]
    assert error["type"] == "invalid_request_error"


def _renamed(body: dict[str, Any]) -> dict[str, Any]:
    return {"sent" if key == "input" else key: value for key, value in body.items()}


async def test_a_stream_that_fails_ends_with_an_error_event(desk: ClientDesk) -> None:
    desk.say("hello hello hello hello", breaks_after=2)
    response = await desk.post("/v1/responses", {"model": MODEL, "input": "x", "stream": True})
    assert events_of(response.text)[-1]["type"] == "error"
