"""Secrets in episodes of the served agent: out of what tools show, and out of what is kept of what was sampled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from envs.types import Observation
from online_agent.agent.world import World
from online_agent.types import SpanKind
from tests.fakes.secrets import PARTS, SECRETS, kept_in
from tests.unit.agent.conftest import Desk, call_text


async def test_what_a_tool_shows_is_redacted_before_the_agent_sees_it(
    desk: Desk, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leaky(world: World, call: object) -> Observation:
        return Observation(f"env: {SECRETS['aws_key']} {SECRETS['url_password']}")

    monkeypatch.setattr(World, "answer", leaky)
    desk.say(call_text("list_files"), "done")
    record = await desk.run()
    [first, _] = desk.turns(record.id)
    assert first.observations[0].text == "env: [redacted:aws_key] postgres://app:[redacted:url_password]@db/shop"
    assert "[redacted:aws_key]" in desk.renderer.decode(desk.prompts()[1])
    assert record.untrainable_reason is None
    assert kept_in(desk.db, Path(sqlite_url.removeprefix("sqlite:///")), desk.renderer) == set()


async def test_a_sampled_secret_is_run_and_blank_in_the_store_and_bars_the_episode(desk: Desk) -> None:
    desk.say(call_text("edit_file", path="src/util.py", old="PLUS", new=SECRETS["aws_key"]), call_text("submit"))
    record = await desk.run()
    assert record.untrainable_reason == "a secret was sampled (aws_key): its ids are blank"
    assert record.artifact is not None
    assert SECRETS["aws_key"] in record.artifact.files["src/util.py"], "the call was run as it was sampled"
    spans = desk.spans(record.id)
    actions = np.concatenate([span.token_ids for span in spans if span.kind is SpanKind.ACTION])
    assert PARTS["aws_key"] not in desk.renderer.decode(actions)
    assert desk.turns(record.id)[0].tool_calls[0].arguments["new"] == "[redacted:aws_key]"
    first, second = desk.prompts()
    assert PARTS["aws_key"] not in desk.renderer.decode(second[len(first) :])
