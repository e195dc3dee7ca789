"""An engine whose answers have another shape than they should: the client gets its text, or an error it can read."""

from __future__ import annotations

from typing import Any, cast

import pytest

from api.chat import answers
from online_agent.gateway.answer_reader import AnswerReader
from online_agent.types import EpisodeStatus
from tests.fakes.gateway import ClientDesk, events_of
from tests.waiting import until

USER = {"role": "user", "content": "fix it"}
NO_NUMBERS = cast("list[float | None]", ["x", "x"])


def broken(*_: object, **__: object) -> None:
    raise RuntimeError("secret detail")


def deltas(chunks: list[Any]) -> str:
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


async def test_log_probs_that_are_no_numbers_are_null_for_a_client_that_waits(desk: ClientDesk) -> None:
    desk.say("hello", logprobs=NO_NUMBERS)
    [choice] = (await desk.answer([USER], "task", logprobs=True, top_logprobs=2))["choices"]
    [token] = choice["logprobs"]["content"]
    assert (choice["message"]["content"], token["logprob"]) == ("hello", None)
    assert [other["logprob"] for other in token["top_logprobs"]] == [-4.0]  # the other alternative is a number
    assert desk.record("task").untrainable_reason == f"{desk.engine.url}, version 1: the log-prob at position 0 is x"


async def test_log_probs_that_are_no_numbers_are_null_in_a_stream(desk: ClientDesk) -> None:
    desk.say("hello", logprobs=NO_NUMBERS)
    chunks = await desk.chunks([USER], "task", logprobs=True, top_logprobs=2)
    assert deltas(chunks) == "hello"
    tokens = [t for c in chunks for p in c["choices"] for t in (p["logprobs"] or {"content": []})["content"]]
    assert [token["logprob"] for token in tokens] == [None]
    assert desk.record("task").untrainable_reason == f"{desk.engine.url}, version 1: the log-prob at position 0 is x"


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("versions", [[1, 2], [{"version": "1"}], [{"version": "1", "start": "0", "end": 2}]])
async def test_versions_of_another_shape_keep_an_answer_out_of_training_and_the_client_gets_its_text(
    desk: ClientDesk, versions: list[Any], is_streamed: bool
) -> None:
    desk.say("hello", raw={"weight_versions": versions, "prompt_tokens": "many", "cached_tokens": [1]})
    if is_streamed:
        assert deltas(await desk.chunks([USER], "task")) == "hello"
    else:
        assert (await desk.answer([USER], "task"))["choices"][0]["message"]["content"] == "hello"
    reason = desk.record("task").untrainable_reason
    assert reason == f"{desk.engine.url}, version 1: weight versions cover 0 of 2 ids"


@pytest.mark.parametrize("token_id", [-1, 2**40])
async def test_an_id_that_is_none_fails_the_turn_and_not_the_episode(desk: ClientDesk, token_id: int) -> None:
    desk.say_ids([token_id])
    whole = await desk.chat([USER], "task")
    assert (whole.status_code, whole.json()["error"]["code"]) == (502, "engine_protocol_error")
    desk.say_ids([token_id])
    streamed = await desk.chat([USER], "task", stream=True)
    assert events_of(streamed.text)[-1]["error"]["code"] == "engine_protocol_error"
    desk.say("fine")
    await desk.answer([USER], "task")
    record = desk.record("task")
    assert (record.status, record.num_turns, record.untrainable_reason) == (EpisodeStatus.OPEN, 1, None)
    assert desk.gateway.num_in_flight == 0


async def test_a_defect_in_the_middle_of_a_stream_is_its_last_event_and_says_nothing_more(
    desk: ClientDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.say("hello")
    with monkeypatch.context() as patch:
        patch.setattr(AnswerReader, "push", broken)
        streamed = await desk.chat([USER], "task", stream=True)
    assert events_of(streamed.text)[-1]["error"]["code"] == "internal_error"
    assert "secret detail" not in streamed.text
    desk.say("fine")
    await desk.answer([USER], "task")
    assert desk.gateway.num_in_flight == 0


async def test_a_defect_in_writing_a_stream_ends_it_and_frees_the_engine(
    desk: ClientDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.engine.token_delay_s = 0.05
    desk.say("hello " * 100)
    monkeypatch.setattr(answers, "_said", broken)
    streamed = await desk.chat([USER], "task", stream=True, max_tokens=400)
    assert events_of(streamed.text)[-1]["error"]["code"] == "internal_error"
    await until(lambda: desk.gateway.num_in_flight == 0, timeout_s=2)
    [completion] = desk.completions("task")
    assert completion.is_cut_short
