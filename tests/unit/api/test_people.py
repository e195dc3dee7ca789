"""Erasing a person over HTTP, with the calls of their own agent."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.api import World
from tests.fakes.gateway import open_desk


async def test_erasing_a_person_is_an_event_that_does_not_name_them(world: World) -> None:
    episode = await world.episode(metadata={"person": "ann lee"})
    await world.episode(metadata={"person": "bob"})
    answer = await world.client.delete("/v1/people/ann lee")
    assert answer.status_code == 200
    assert answer.json() == {"num_episodes": 1, "num_feedback": 0, "num_held": 0, "versions": []}
    assert (await world.client.get(f"/v1/episodes/{episode['id']}")).status_code == 404
    events = await world.client.get("/v1/events?kind=person_erased")
    assert events.json()["data"][0]["data"]["num_episodes"] == 1
    assert "ann" not in events.text
    denied = await world.client.delete("/v1/people/bob", headers=world.headers("agent"))
    assert denied.status_code == 403


async def test_an_episode_is_a_persons_when_any_call_of_it_was(tmp_path: Path, model_dirs: dict[int, Path]) -> None:
    async with open_desk(tmp_path, model_dirs[1]) as desk:
        messages = [{"role": "user", "content": "hi"}]
        for episode, people in {"shared": ("bob", "ann"), "other": ("bob", "bob")}.items():
            for person in people:
                desk.say("a")
                await desk.answer(messages, episode, metadata={"person": person})
                messages = [*messages, {"role": "user", "content": "more"}]
        assert (await desk.http.delete("/v1/people/ann")).json()["num_episodes"] == 1
        assert (await desk.http.get("/v1/episodes/shared")).status_code == 404
        assert (await desk.http.get("/v1/episodes/other")).status_code == 200
