"""The same answers on SQLite and PostgreSQL, for values that the two treat differently."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from online_agent.config.settings import DatabaseSettings
from tests.fakes.api import World, open_world


@pytest.fixture
async def world(tmp_path: Path, database_url: str) -> AsyncIterator[World]:
    async with open_world(tmp_path, database=DatabaseSettings(url=database_url)) as opened:
        yield opened


async def test_values_at_the_edge_of_what_a_database_takes_are_answered_and_never_5xx(world: World) -> None:
    for path, status in {
        "/v1/episodes/a%00b": 400,
        "/v1/episodes/%F0%9F%A4%96%ED%A0%80": 404,
        f"/v1/episodes/{'x' * 64}": 404,
        "/v1/episodes?env=%FF%FE": 200,
        "/v1/episodes?cursor=%0A": 400,
        "/v1/episodes?group_id=a%00b": 400,
        f"/v1/episodes?group_id={'%F0%9F%A4%96' * 20}": 200,
        f"/v1/episodes?group_id={'x' * 101}": 400,
        f"/v1/episodes?weight_version={2**31 - 1}": 200,
        f"/v1/episodes?weight_version={2**31}": 400,
        f"/v1/weights/{2**31 - 1}": 404,
        f"/v1/weights?cursor={2**31 - 1}": 200,
        f"/v1/weights?cursor={2**31}": 400,
        f"/v1/training/steps?cursor={2**31 - 1}": 200,
        f"/v1/training/steps?cursor={2**31}": 400,
        f"/v1/events?after={2**63 - 1}": 200,
        f"/v1/events?after={2**63}": 400,
    }.items():
        answer = await world.client.get(path)
        assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text}"


async def test_an_episode_its_feedback_and_its_erasure(world: World) -> None:
    metadata = {"note": "a\tb\n🤖 \u2028", "big": 1e308, "deep": [[[{}]]]}
    episode = await world.episode(metadata=metadata)
    assert episode["metadata"] == metadata
    path = f"/v1/episodes/{episode['id']}"
    for key in ("k1", "k1"):
        body = {"reward": 0.5, "source": "person", "text": "gut 🤖"}
        answer = await world.client.post(f"{path}/feedback", json=body, headers={"Idempotency-Key": key})
        assert (answer.status_code, answer.json()["text"]) == (201, "gut 🤖")
    whole = (await world.client.get(f"{path}?include=spans")).json()
    assert len(whole["feedback"]) == 1
    assert whole["turns"][0]["spans"][1]["logprobs"] == [-0.5, -0.25, -1.0]
    assert (await world.client.delete(path)).status_code == 204
    assert (await world.client.get(path)).status_code == 404


async def test_a_group_is_started_waited_for_listed_and_erased_one_by_one(world: World) -> None:
    group = await world.episode(group_size=64)
    assert [member["status"] for member in group["members"]] == ["graded"] * 64
    path = f"/v1/episodes?group_id={group['group_id']}"
    listed = (await world.client.get(f"{path}&limit=100")).json()["data"]
    assert [row["id"] for row in listed] == group["episode_ids"][::-1]
    assert (await world.client.delete(f"/v1/episodes/{group['id']}")).status_code == 204
    assert len((await world.client.get(f"{path}&limit=100")).json()["data"]) == 63


async def test_every_overview_answers(world: World) -> None:
    await world.episode()
    for path in ("/v1/training", "/v1/weights", "/v1/adaptation?env=add_one", "/v1/drift", "/metrics", "/readyz"):
        assert (await world.client.get(path)).status_code == 200, path
