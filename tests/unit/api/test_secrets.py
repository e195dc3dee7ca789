"""Secrets in what is given to the API beside clients' calls: feedback, notes, brought episodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gateway import ClientDesk, open_desk
from tests.fakes.secrets import SECRETS, kept_in

ALL = "\n".join(SECRETS.values())


@pytest.fixture
async def desk(tmp_path: Path, model_dirs: dict[int, Path]) -> AsyncIterator[ClientDesk]:
    async with open_desk(tmp_path, model_dirs[1]) as opened:
        opened.world.runtime.renderer = opened.renderer
        yield opened


def kept(desk: ClientDesk) -> set[str]:
    return kept_in(desk.world.db, desk.world.runtime.settings.data_dir / "online_agent.db", desk.renderer)


async def test_feedback_outcomes_and_notes_are_stored_without_secrets(desk: ClientDesk) -> None:
    desk.say("fine")
    await desk.answer([{"role": "user", "content": "hi"}], "task")
    given = await desk.post("/v1/episodes/task/feedback", {"text": ALL, "source": "app"}, **{"Idempotency-Key": "k"})
    assert "[redacted:aws_key]" in given.json()["text"]
    again = await desk.post("/v1/episodes/task/feedback", {"text": ALL, "source": "app"})
    assert again.json()["fate"] == "duplicate", "redacted texts are compared"
    assert (await desk.post("/v1/episodes/task/close", {"outcome": ALL})).status_code == 200
    await desk.world.episode(metadata={"note": ALL})
    assert kept(desk) == set()


async def test_a_brought_episode_loses_its_secrets_in_texts_and_ids_and_trains_nothing(desk: ClientDesk) -> None:
    prompt, action = desk.ids(f"use {SECRETS['aws_key']}"), desk.ids("ok")
    logprobs = {"logprobs": [-1.0] * len(action), "version_runs": [[1, 0, len(action)]]}
    spans: list[dict[str, Any]] = [
        {"kind": "prompt", "token_ids": prompt},
        {"kind": "action", "token_ids": action, **logprobs},
    ]
    held = {
        "id": "a",
        "reward": 1.0,
        "metadata": {"note": ALL},
        "turns": [
            {
                "text": ALL,
                "spans": spans,
                "observations": [{"text": ALL}],
                "tool_calls": [{"name": "f", "arguments": {"k": [ALL]}, "error": ALL}],
            }
        ],
    }
    clean = {"id": "b", "reward": 1.0, "turns": [{"spans": [{"kind": "prompt", "token_ids": action}, spans[1]]}]}
    told = {"id": "c", "messages": [{"role": "user", "content": ALL}, {"role": "assistant", "content": ALL}]}
    answer = await desk.post("/v1/episodes/import", {"episodes": [held, clean, told]})
    assert answer.status_code == 201, answer.text
    reasons = [row["untrainable_reason"] for row in answer.json()["data"]]
    assert reasons[:2] == ["a secret stood in it: its ids are blank", None]
    assert kept(desk) == set()
    repeated = await desk.post("/v1/episodes/import", {"episodes": [held]})
    assert repeated.json()["data"][0]["result"] == "duplicate"
