"""Feedback over HTTP: bad rewards are named, fates are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from online_agent.config.signal import FeedbackSettings
from tests.fakes.api import World, open_world


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b'{"reward": NaN, "source": "x"}', "NaN"),
        (b'{"reward": Infinity, "source": "x"}', "Infinity"),
        (b'{"reward": 1.5, "source": "x"}', "got 1.5"),
        (b'{"reward": -1.01, "source": "x"}', "got -1.01"),
        (b'{"reward": "1", "source": "x"}', "got '1'"),
        (b'{"reward": true, "source": "x"}', "got True"),
        (b'{"source": "x"}', "reward, a text, or both"),
        (b'{"reward": 1}', "source"),
        (b'{"reward": 1, "source": "x", "turns": [-1]}', "got -1"),
    ],
)
async def test_unusable_feedback_is_400_names_the_value_and_stores_nothing(
    world: World, content: bytes, shown: str
) -> None:
    episode = await world.episode()
    path = f"/v1/episodes/{episode['id']}/feedback"
    answer = await world.client.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert shown in answer.json()["error"]["message"]
    assert (await world.client.get(path)).json() == {"data": []}


@pytest.mark.parametrize("reward", [-1, -1.0, 0, 0.25, 1, 1.0])
async def test_rewards_up_to_both_ends_of_the_range_are_taken(world: World, reward: float) -> None:
    episode = await world.episode()
    answer = await world.client.post(
        f"/v1/episodes/{episode['id']}/feedback", json={"reward": reward, "source": "person"}
    )
    assert answer.status_code == 201
    assert (answer.json()["reward"], answer.json()["fate"]) == (reward, "accepted")


async def test_every_piece_is_kept_with_its_fate(world: World) -> None:
    episode = await world.episode()
    held_out = await world.episode(task_id="heldout-1")

    async def give(episode: dict[str, Any], **body: Any) -> str:
        answer = await world.client.post(f"/v1/episodes/{episode['id']}/feedback", json=body)
        fate: str = answer.json()["fate"]
        return fate

    assert await give(episode, reward=1, source="a") == "accepted"
    assert await give(episode, reward=1, source="a") == "duplicate"
    assert await give(episode, reward=1, source="b", turns=[0]) == "accepted"
    assert await give(held_out, reward=1, source="a") == "quarantined"
    listed = (await world.client.get(f"/v1/episodes/{episode['id']}/feedback")).json()["data"]
    assert [(f["source"], f["fate"]) for f in listed] == [("a", "accepted"), ("a", "duplicate"), ("b", "accepted")]


async def test_feedback_may_come_before_the_end(world: World) -> None:
    world.runner.hold()
    episode = (await world.client.post("/v1/episodes", json={"env": "add_one"})).json()
    answer = await world.client.post(f"/v1/episodes/{episode['id']}/feedback", json={"text": "good", "source": "a"})
    assert answer.json()["fate"] == "accepted"
    world.runner.let_go()


async def test_feedback_on_nothing_is_404(world: World) -> None:
    answer = await world.client.post("/v1/episodes/ep_none/feedback", json={"reward": 1, "source": "a"})
    assert answer.status_code == 404


async def test_an_operator_releases_or_discards_what_came_too_fast(tmp_path: Path) -> None:
    async with open_world(tmp_path, feedback=FeedbackSettings(max_per_minute=1)) as world:
        path = f"/v1/episodes/{(await world.episode())['id']}/feedback"
        bodies = [{"reward": reward, "source": "app", "person": "ann"} for reward in (1.0, 0.5, 0.25)]
        first, second, third = [(await world.client.post(path, json=body)).json() for body in bodies]
        assert [row["fate"] for row in (first, second, third)] == ["accepted", "quarantined", "quarantined"]
        assert second["reason"] == "more than 1 in a minute"
        waiting = (await world.client.get("/v1/feedback?limit=1")).json()
        assert [row["id"] for row in waiting["data"]] == [second["id"]]
        assert "\nonline_agent_feedback_waiting 2.0\n" in (await world.client.get("/metrics")).text
        rest = (await world.client.get(f"/v1/feedback?cursor={waiting['next_cursor']}")).json()
        assert [(row["id"], row["person"]) for row in rest["data"]] == [(third["id"], "ann")]
        released = await world.client.post(f"/v1/feedback/{second['id']}/release")
        discarded = await world.client.post(f"/v1/feedback/{third['id']}/discard")
        assert (released.json()["fate"], discarded.json()["reason"]) == ("accepted", "discarded by an operator")
        assert "\nonline_agent_feedback_waiting 0.0\n" in (await world.client.get("/metrics")).text
        again = await world.client.post(f"/v1/feedback/{third['id']}/release")
        assert again.status_code == 409
        events = (await world.client.get("/v1/events?kind=feedback_released&kind=feedback_discarded")).json()["data"]
        assert [event["data"]["feedback_id"] for event in events] == [second["id"], third["id"]]
        denied = await world.client.get("/v1/feedback", headers=world.headers("agent"))
        assert denied.status_code == 403
