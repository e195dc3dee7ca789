"""Erasing a person over HTTP, with the calls of their own agent."""

from __future__ import annotations

from tests.fakes.api import World


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
