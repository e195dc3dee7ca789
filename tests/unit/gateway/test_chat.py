"""``/v1/chat/completions`` as an OpenAI client meets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gateway import MODEL, READ_FILE, RUN_TESTS, ClientDesk, call_text, events_of, open_desk
from tests.fakes.tiny_model import CHAT_TEMPLATE, write_tiny_model

USER = {"role": "user", "content": "fix src/calc.py"}


def merged(chunks: list[Any], choice: int = 0) -> dict[str, Any]:
    """What a client that merges by index makes of the chunks of one choice."""
    text, calls, finish = "", {}, None
    for chunk in chunks:
        for part in chunk["choices"]:
            if part["index"] != choice:
                continue
            text += part["delta"].get("content") or ""
            finish = part["finish_reason"] or finish
            for call in part["delta"].get("tool_calls", []):
                known = calls.setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
                known["id"] += call.get("id", "")
                known["name"] += call["function"].get("name", "")
                known["arguments"] += call["function"].get("arguments", "")
    return {"text": text, "calls": calls, "finish": finish}


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
    assert (response.headers["X-Turn"], response.headers["X-Weight-Version"]) == ("0", "1")
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


async def test_content_may_be_a_string_parts_or_null(desk: ClientDesk) -> None:
    desk.say("a", "a")
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    await desk.answer([{"role": "user", "content": parts}, {"role": "assistant", "content": None}, USER])
    await desk.answer([{"role": "user", "content": "hel\nlo"}, {"role": "assistant", "content": ""}, USER])
    first, second = desk.prompts()
    assert first == second


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "gpt-5"}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}]},
            "messages[0].tool_calls",
        ),
        ({"n": 9}, "n"),
        ({"n": 0}, "n"),
        ({"temperature": 3.0}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [READ_FILE], "tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"logit_bias": {"5": 10.0}}, "logit_bias"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"metadata": {"x": "y" * 20_000}}, "metadata"),
    ],
)
async def test_what_cannot_be_followed_is_refused_by_name(desk: ClientDesk, body: dict[str, Any], param: str) -> None:
    response = await desk.post("/v1/chat/completions", {"model": MODEL, "messages": [USER], **body})
    error = response.json()["error"]
    assert response.status_code in (400, 404, 413), response.text
    assert error["param"] is not None
    assert error["param"].startswith(param)
    assert desk.prompts() == []


async def test_fields_that_change_nothing_are_ignored(desk: ClientDesk) -> None:
    desk.say("fine")
    answer = await desk.answer([USER], user="ann", store=False, service_tier="auto", response_format={"type": "text"})
    assert answer["choices"][0]["message"]["content"] == "fine"


async def test_a_history_without_room_for_an_answer_says_so(desk: ClientDesk) -> None:
    response = await desk.chat([{"role": "user", "content": "hello " * 2000}])
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


async def test_an_answer_asked_to_be_longer_than_the_context_is_as_long_as_there_is_room(desk: ClientDesk) -> None:
    desk.say("ok")
    await desk.answer([USER], max_tokens=100_000)
    [body] = desk.engine.bodies("/generate")
    assert len(body["input_ids"]) + body["sampling_params"]["max_new_tokens"] == 1024 - 8


async def test_max_completion_tokens_is_the_newer_name_and_wins(desk: ClientDesk) -> None:
    desk.say("hello world hello world")
    answer = await desk.answer([USER], max_tokens=50, max_completion_tokens=2)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 2


async def test_several_choices_are_several_turns_of_one_prompt(desk: ClientDesk) -> None:
    desk.say("one", "two", "three")
    answer = await desk.answer([USER], "task", n=3)
    assert sorted(choice["message"]["content"] for choice in answer["choices"]) == ["one", "three", "two"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == sum(map(len, desk.actions("task")))
    assert answer["usage"]["prompt_tokens"] == len(desk.prompts()[0])
    assert desk.client_episode("task").num_segments == 3


async def test_a_stop_string_ends_the_answer_and_the_ids_up_to_it_are_stored(desk: ClientDesk) -> None:
    ids = desk.ids("hello STOP world")
    desk.say("hello STOP world")
    answer = await desk.answer([USER], "task", stop=["STOP"])
    assert answer["choices"][0]["message"]["content"] == "hello "
    assert answer["choices"][0]["finish_reason"] == "stop"
    [stored] = desk.actions("task")
    assert stored == ids[: len(stored)]
    assert desk.renderer.decode(stored).endswith("STOP")
    assert desk.engine.bodies("/abort_request")


async def test_a_seed_and_sampling_go_to_the_engine(desk: ClientDesk) -> None:
    desk.say("ok")
    await desk.answer([USER], seed=7, temperature=0.5, top_p=0.9, presence_penalty=0.5)
    params = desk.engine.bodies("/generate")[0]["sampling_params"]
    assert (params["sampling_seed"], params["temperature"], params["top_p"]) == (7, 0.5, 0.9)
    assert params["presence_penalty"] == 0.5


async def test_logprobs_are_the_engines_with_their_alternatives(desk: ClientDesk) -> None:
    desk.say("hello", logprobs=[-0.25, -0.5])
    answer = await desk.answer([USER], logprobs=True, top_logprobs=2)
    [token] = answer["choices"][0]["logprobs"]["content"]
    assert (token["token"], token["logprob"], token["bytes"]) == ("hello", -0.25, list(b"hello"))
    assert [other["logprob"] for other in token["top_logprobs"]] == [-0.25, -4.0]


async def test_parallel_calls_keep_their_own_index_id_and_arguments(desk: ClientDesk) -> None:
    """C17: text before the calls shifts nothing, merging by index gives exactly two calls."""
    said = "I look. " + call_text("read_file", path="a.py") + "\n" + call_text("run_tests")
    desk.say(said, said)
    chunks = await desk.chunks([USER], "streamed", tools=[READ_FILE, RUN_TESTS])
    streamed = merged(chunks)
    assert [call["index"] for c in chunks for p in c["choices"] for call in p["delta"].get("tool_calls", [])] == [0, 1]
    assert [(c["name"], c["arguments"]) for _, c in sorted(streamed["calls"].items())] == [
        ("read_file", '{"path":"a.py"}'),
        ("run_tests", "{}"),
    ]
    assert len({call["id"] for call in streamed["calls"].values()} - {""}) == 2
    assert (streamed["text"], streamed["finish"]) == ("I look.", "tool_calls")
    plain = (await desk.answer([USER], "plain", tools=[READ_FILE, RUN_TESTS]))["choices"][0]
    assert plain["message"]["content"] == "I look."
    assert [call["function"]["arguments"] for call in plain["message"]["tool_calls"]] == ['{"path":"a.py"}', "{}"]
    assert plain["finish_reason"] == "tool_calls"


async def test_a_call_cut_off_by_the_limit_stays_text_so_nobody_runs_it(desk: ClientDesk) -> None:
    desk.say('<tool_call>\n{"name": "run_tests", "arguments": {"pa', ends=False)
    answer = await desk.answer([USER], tools=[RUN_TESTS])
    [choice] = answer["choices"]
    assert "tool_calls" not in choice["message"]
    assert choice["message"]["content"].startswith("<tool_call>")


async def test_without_tools_or_with_choice_none_tags_are_text(desk: ClientDesk) -> None:
    text = call_text("run_tests")
    desk.say(text, text)
    assert (await desk.answer([USER]))["choices"][0]["message"]["content"] == text
    answer = await desk.answer([USER], tools=[RUN_TESTS], tool_choice="none")
    assert answer["choices"][0]["message"]["content"] == text


async def test_a_chosen_tool_is_called_from_a_beginning_that_was_not_sampled(desk: ClientDesk) -> None:
    desk.say('{"path": "b.py"}}\n</tool_call> and more')
    choice = {"type": "function", "function": {"name": "read_file"}}
    answer = await desk.answer([USER], "task", tools=[READ_FILE], tool_choice=choice)
    [call] = answer["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("read_file", '{"path":"b.py"}')
    forced = desk.ids('<tool_call>\n{"name": "read_file", "arguments": ')
    assert desk.prompts()[0][-len(forced) :] == forced
    [sampled] = desk.actions("task")
    assert desk.renderer.decode(sampled) == '{"path": "b.py"}}\n</tool_call>'


async def test_required_forces_some_call_and_one_is_enough_without_parallel_calls(desk: ClientDesk) -> None:
    two = 'run_tests", "arguments": {}}\n</tool_call>' + call_text("read_file")
    desk.say(two, two)
    both = await desk.answer([USER], "both", tools=[READ_FILE, RUN_TESTS], tool_choice="required")
    assert [c["function"]["name"] for c in both["choices"][0]["message"]["tool_calls"]] == ["run_tests", "read_file"]
    one = await desk.answer(
        [USER], "one", tools=[READ_FILE, RUN_TESTS], tool_choice="required", parallel_tool_calls=False
    )
    assert [c["function"]["name"] for c in one["choices"][0]["message"]["tool_calls"]] == ["run_tests"]


async def test_reasoning_is_told_apart(desk: ClientDesk) -> None:
    desk.say("<think>\nhm\n</think>\n\nhello", "<think>\nhm\n</think>\n\nhello")
    message = (await desk.answer([USER]))["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("hello", "\nhm\n")
    chunks = await desk.chunks([USER])
    thought = "".join(p["delta"].get("reasoning_content", "") for c in chunks for p in c["choices"])
    assert (merged(chunks)["text"], thought) == ("hello", "\nhm\n")


async def test_a_stream_ends_with_usage_only_when_asked_and_carries_its_receipt_last(desk: ClientDesk) -> None:
    """C21: one extra last chunk without choices, then [DONE]; without the option no such chunk."""
    desk.say("hello", "hello")
    with_usage = await desk.chunks([USER], "a", stream_options={"include_usage": True})
    last = with_usage[-1]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(desk.actions("a")[0])
    assert last["receipt"]["turn"] == 0
    assert all(chunk["usage"] is None for chunk in with_usage[:-1])
    without = await desk.chunks([USER], "b")
    assert all(len(chunk["choices"]) == 1 and "usage" not in chunk for chunk in without)
    assert without[-1]["choices"][0]["finish_reason"] == "stop"
    assert without[-1]["receipt"]["episode_id"] == desk.client_episode("b").id
    assert not any("receipt" in chunk for chunk in without[:-1])


async def test_a_character_over_two_tokens_comes_whole_and_its_tokens_keep_their_bytes(desk: ClientDesk) -> None:
    """C20: no replacement character in any delta; a cut tail is flushed once at the end."""
    ids = desk.ids("😊")
    assert len(ids) > 1
    desk.say_ids([*ids, *desk.ids("<|im_end|>")])
    chunks = await desk.chunks([USER], logprobs=True)
    assert merged(chunks)["text"] == "😊"
    tokens = [t for c in chunks for p in c["choices"] for t in (p["logprobs"] or {"content": []})["content"]]
    assert [byte for token in tokens for byte in token["bytes"]] == list("😊".encode())
    assert len(tokens) == len(ids)
    desk.say_ids(ids[:1])
    cut = await desk.chunks([USER])
    assert [p["delta"]["content"] for c in cut for p in c["choices"] if p["delta"].get("content")] == ["�"]


async def test_models_are_listed_and_an_unknown_one_is_404(desk: ClientDesk) -> None:
    [model] = (await desk.http.get("/v1/models")).json()["data"]
    assert (model["id"], model["object"], model["weight_version"]) == (MODEL, "model", 1)
    assert (await desk.http.get(f"/v1/models/{MODEL}")).json() == model
    missing = await desk.http.get("/v1/models/gpt-5")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")


async def test_a_call_that_is_not_recorded_leaves_nothing(desk: ClientDesk) -> None:
    desk.say("secret")
    body = {"model": MODEL, "messages": [USER]}
    response = await desk.post("/v1/chat/completions", body, **{"X-Record": "false"})
    assert response.json()["choices"][0]["message"]["content"] == "secret"
    assert "X-Episode-Id" not in response.headers
    assert "receipt" not in response.json()
    with desk.world.db.reading() as tx:
        assert tx.episodes.list("acme").items == []


async def test_an_engine_that_is_away_is_503_with_retry_after(desk: ClientDesk) -> None:
    desk.engine.faults.extend(["error_500"] * 50)
    response = await desk.chat([USER])
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_unavailable")
    assert response.headers["Retry-After"]


async def test_a_key_without_the_agent_scope_may_not_call(desk: ClientDesk) -> None:
    response = await desk.http.post(
        "/v1/chat/completions", json={"model": MODEL, "messages": [USER]}, headers=desk.world.headers("operator")
    )
    assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")


async def test_a_failed_stream_ends_with_an_error_event(desk: ClientDesk) -> None:
    desk.say("hello hello hello hello", breaks_after=2)
    response = await desk.chat([USER], "task", stream=True)
    events = events_of(response.text)
    assert events[-1]["error"]["code"] == "engine_protocol_error"
    assert "[DONE]" not in events


async def test_a_template_that_opens_the_reasoning_itself_is_understood(tmp_path: Path) -> None:
    template = CHAT_TEMPLATE.replace(r"assistant\n' }}{%- endif %}", r"assistant\n<think>\n' }}{%- endif %}")
    assert template != CHAT_TEMPLATE
    async with open_desk(tmp_path, write_tiny_model(tmp_path / "model", chat_template=template)) as desk:
        desk.say("hm</think>\n\nhello", "done")
        message = (await desk.answer([USER], "task"))["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == ("hello", "hm")
        await desk.answer([USER, {"role": "assistant", "content": "hello"}, USER], "task")
        assert desk.client_episode("task").num_segments == 1
