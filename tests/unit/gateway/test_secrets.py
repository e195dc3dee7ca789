"""Secrets of clients: the model does not see them, the store does not hold them, histories match all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from online_agent.config.settings import load_settings
from online_agent.telemetry.logging import get_logger, setup_logging
from tests.fakes.gateway import MODEL, READ_FILE, ClientDesk, call_text, open_desk
from tests.fakes.secrets import PARTS, SECRETS, kept_in
from tests.plain_logs import log_plainly

ALL = "\n".join(SECRETS.values())
USER = {"role": "user", "content": f"use {ALL} please"}
GO_ON = {"role": "user", "content": "go on"}


@pytest.fixture
def logged(tmp_path: Path) -> Iterator[Path]:
    """The log file of this process, at its most talkative."""
    root = getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    setup_logging("api", load_settings(data_dir=tmp_path, log_level="debug"))
    yield tmp_path / "logs" / "api.log"
    for handler in root.handlers:
        handler.close()
    root.handlers, root.level = handlers, level
    log_plainly()


@pytest.fixture
async def desk(tmp_path: Path, model_dirs: dict[int, Path], logged: Path) -> AsyncIterator[ClientDesk]:
    async with open_desk(tmp_path, model_dirs[1]) as opened:
        yield opened


def kept(desk: ClientDesk) -> set[str]:
    return kept_in(desk.world.db, desk.world.runtime.settings.data_dir / "online_agent.db", desk.renderer)


def message_of(answer: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = answer["choices"][0]["message"]
    return message


async def test_the_model_sees_the_redacted_text_and_a_history_with_the_secret_matches_it(desk: ClientDesk) -> None:
    desk.say("fine", "done")
    first = await desk.answer([USER], "task", metadata={"note": ALL}, tools=[READ_FILE])
    await desk.answer([USER, message_of(first), GO_ON], "task", tools=[READ_FILE])
    assert desk.client_episode("task").num_segments == 1
    [row] = desk.training_rows("task")
    assert row.num_action_tokens == sum(map(len, desk.actions("task")))
    for prompt in desk.prompts():
        text = desk.renderer.decode(prompt)
        assert all(f"[redacted:{name}]" in text for name in SECRETS)
        assert not [name for name, part in PARTS.items() if part in text]
    assert kept(desk) == set()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"system": ALL, "messages": [{"role": "user", "content": ALL}]}),
        ("/v1/responses", {"instructions": ALL, "input": ALL, "metadata": {"k": SECRETS["aws_key"]}}),
        (
            "/v1/chat/completions",
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": ALL}]},
                    {
                        "role": "assistant",
                        "tool_calls": [{"id": "1", "function": {"name": "read_file", "arguments": {"path": ALL}}}],
                    },
                    {"role": "tool", "tool_call_id": "1", "content": ALL},
                ],
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "read_file", "description": ALL, "parameters": {"title": ALL}},
                    }
                ],
            },
        ),
    ],
)
async def test_no_protocol_lets_a_secret_through(desk: ClientDesk, path: str, body: dict[str, Any]) -> None:
    desk.say("fine")
    answer = await desk.post(path, {"model": MODEL, **({"max_tokens": 8} if "responses" not in path else {}), **body})
    assert answer.status_code == 200, answer.text
    [prompt] = desk.prompts()
    assert not [name for name, part in PARTS.items() if part in desk.renderer.decode(prompt)]
    assert kept(desk) == set()


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_sampled_secret_reaches_the_client_and_is_blank_in_the_store(
    desk: ClientDesk, is_streamed: bool
) -> None:
    """The turn keeps as many ids as were sampled, trains nothing, and the next turn is sampled behind the blanks."""
    key = SECRETS["aws_key"]
    desk.say(f"the key is {key}, {SECRETS['jwt']}", "done")
    if is_streamed:
        chunks = await desk.chunks([USER], "task", max_tokens=256)
        told = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
    else:
        told = message_of(await desk.answer([USER], "task", max_tokens=256))["content"]
    assert key in told
    [completion] = desk.completions("task")
    assert completion.untrainable_reason == "a secret was sampled (aws_key, jwt): its ids are blank"
    assert completion.message["text"] == "the key is [redacted:aws_key], [redacted:jwt]"
    [sampled] = desk.actions("task")
    assert len(sampled) == len(desk.ids(f"the key is {key}, {SECRETS['jwt']}<|im_end|>"))
    await desk.answer([USER, {"role": "assistant", "content": told}, GO_ON], "task")
    assert desk.client_episode("task").num_segments == 1
    assert desk.prompts()[1][: len(desk.prompts()[0]) + len(sampled)] == [*desk.prompts()[0], *sampled]
    [row] = desk.training_rows("task")
    assert desk.renderer.decode(row.token_ids[row.action_mask]) == "done<|im_end|>"
    assert np.isfinite(row.logprobs).all()
    assert kept(desk) == set()


async def test_a_secret_in_the_arguments_of_a_call_is_run_by_the_client_and_not_kept(desk: ClientDesk) -> None:
    escaped = '{"name": "read_file", "arguments": {"path": "/k/\\u0041KIAQ3EGTR7XW5LMNP2Z"}}'
    desk.say(call_text("read_file", path=SECRETS["private_key"]), f"<tool_call>\n{escaped}\n</tool_call>", "done")
    first = await desk.answer([USER], "task", tools=[READ_FILE], max_tokens=256)
    [call] = message_of(first)["tool_calls"]
    assert PARTS["private_key"] in call["function"]["arguments"]
    result = {"role": "tool", "tool_call_id": call["id"], "content": ALL}
    second = await desk.answer([USER, message_of(first), result], "task", tools=[READ_FILE], max_tokens=256)
    [call] = message_of(second)["tool_calls"]
    assert SECRETS["aws_key"] in call["function"]["arguments"]
    history = [USER, message_of(first), result, message_of(second), {**result, "tool_call_id": call["id"]}]
    await desk.answer(history, "task", tools=[READ_FILE])
    assert desk.client_episode("task").num_segments == 1
    reasons = [completion.untrainable_reason for completion in desk.completions("task")]
    assert [reason is None for reason in reasons] == [False, False, True]
    assert kept(desk) == set()


async def test_a_generation_that_is_kept_aside_holds_no_secret(desk: ClientDesk) -> None:
    desk.say(f"it is {ALL}", "fine")
    await desk.answer([USER], "task", max_tokens=512)
    await desk.answer([USER], "task", max_tokens=512)
    assert len(desk.discarded("task")) == 1
    assert kept(desk) == set()


async def test_what_was_replaced_is_counted_by_name(desk: ClientDesk) -> None:
    desk.say("fine")
    await desk.answer([USER], "task")
    metrics = (await desk.http.get("/metrics")).text
    assert 'online_agent_redactions_total{pattern="aws_key"} 1.0' in metrics
    assert not [name for name, part in PARTS.items() if part in metrics]


async def test_no_log_line_holds_a_secret(desk: ClientDesk, logged: Path) -> None:
    desk.say("fine")
    await desk.answer([USER], "task")
    get_logger("api").warning("refused", body=ALL, error=ValueError(ALL))
    text = logged.read_text()
    assert "refused" in text
    assert not [name for name, part in PARTS.items() if part in text]
