"""Changes over HTTP: injected, listed, shown in the tool schemas, reverted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.api import World

RENAME = {"env": "add_one", "kind": "rename_tool", "params": {"tool": "edit_file", "to": "patch_file"}}


async def tool_names(world: World) -> list[str]:
    envs = (await world.client.get("/v1/envs")).json()
    return [tool["name"] for tool in envs["data"][0]["tools"]]


async def revision(world: World) -> str:
    value: str = (await world.client.get("/v1/envs")).json()["data"][0]["revision"]
    return value


async def test_a_documented_change_shows_in_the_schemas_and_a_silent_one_does_not(world: World) -> None:
    before = await revision(world)
    silent = await world.client.post("/v1/changes", json={**RENAME, "visibility": "silent"})
    assert (silent.status_code, silent.json()["state"]) == (201, "active")
    assert await tool_names(world) == ["edit_file"]
    assert await revision(world) != before
    await world.client.delete(f"/v1/changes/{silent.json()['id']}")
    assert await revision(world) == before
    await world.client.post("/v1/changes", json=RENAME)
    assert await tool_names(world) == ["patch_file"]


async def test_a_change_may_wait_for_episodes_and_end_after_more(world: World) -> None:
    body = {**RENAME, "starts": {"after_episodes": 2}, "ends": {"after_episodes": 5}}
    answer = (await world.client.post("/v1/changes", json=body)).json()
    assert (answer["state"], answer["starts_at_episode"], answer["ends_at_episode"]) == ("pending", 2, 5)
    assert await tool_names(world) == ["edit_file"]


@pytest.mark.parametrize(
    ("body", "status", "shown"),
    [
        ({**RENAME, "kind": "explode"}, 400, "'explode'"),
        ({**RENAME, "params": {"tool": "nope", "to": "x"}}, 400, "'nope'"),
        ({**RENAME, "params": {"tool": "edit_file"}}, 400, "to"),
        ({**RENAME, "params": {"tool": "edit_file", "to": "no good"}}, 400, "'no good'"),
        ({**RENAME, "env": "nope"}, 404, "'nope'"),
        ({**RENAME, "visibility": "hidden"}, 400, "'hidden'"),
        ({**RENAME, "starts": {"after_episodes": 0}}, 400, "0"),
        ({**RENAME, "starts": {"after_episodes": 5}, "ends": {"after_episodes": 5}}, 400, "5"),
    ],
)
async def test_a_bad_change_names_the_bad_value_and_is_not_stored(
    world: World, body: dict[str, Any], status: int, shown: str
) -> None:
    answer = await world.client.post("/v1/changes", json=body)
    assert answer.status_code == status
    assert shown in answer.json()["error"]["message"]
    assert (await world.client.get("/v1/changes")).json() == {"data": []}


async def test_a_change_is_checked_against_the_tools_as_they_are_now(world: World) -> None:
    await world.client.post("/v1/changes", json={**RENAME, "visibility": "silent"})
    again = await world.client.post("/v1/changes", json=RENAME)
    assert again.status_code == 400
    assert "patch_file" in again.json()["error"]["message"]


async def test_reverting_twice_is_409_and_an_unknown_change_404(world: World) -> None:
    change = (await world.client.post("/v1/changes", json=RENAME)).json()
    path = f"/v1/changes/{change['id']}"
    assert (await world.client.delete(path)).json()["state"] == "ended"
    assert (await world.client.delete(path)).status_code == 409
    assert (await world.client.delete("/v1/changes/chg_none")).status_code == 404


async def test_changes_are_events_that_only_their_tenant_sees(world: World) -> None:
    change = (await world.client.post("/v1/changes", json=RENAME)).json()
    await world.client.delete(f"/v1/changes/{change['id']}")
    path = "/v1/events?kind=change_injected&kind=change_reverted"
    events = (await world.client.get(path)).json()
    assert [(e["kind"], e["data"]["change_id"]) for e in events["data"]] == [
        ("change_injected", change["id"]),
        ("change_reverted", change["id"]),
    ]
    assert (await world.client.get(path, headers=world.headers("other"))).json()["data"] == []
