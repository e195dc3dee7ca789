"""``/v1/tenant``: an admin says whether the tenant's episodes may be trained on."""

from __future__ import annotations

from sqlalchemy import text

from tests.fakes.api import World
from tests.fakes.episodes import commit_step, reserve_step


async def test_opting_out_tells_the_versions_trained_before_and_is_an_event(world: World) -> None:
    await world.episode()
    step = reserve_step(world.db, 1, current_version=1)
    assert step is not None
    version = commit_step(world.db, step, parent=1)
    waiting = await world.episode()
    said = await world.client.put("/v1/tenant", json={"trains_shared_weights": False})
    assert said.status_code == 200
    assert (said.json()["trains_shared_weights"], said.json()["versions"]) == (False, [version])
    assert (await world.client.get("/v1/tenant")).json() == said.json()
    shown = (await world.client.get(f"/v1/episodes/{waiting['id']}")).json()
    assert shown["untrainable_reason"] == "the tenant has opted out of training"
    [event] = (await world.client.get("/v1/events?kind=tenant_opted_out")).json()["data"]
    assert event["data"]["versions"] == [version]
    assert event["data"]["key_id"]


async def test_a_tenant_that_opts_in_is_trained_on_from_its_next_episode(world: World) -> None:
    with world.db.transaction() as tx:
        tx.connection.execute(text("DELETE FROM tenants"))
    first = await world.episode()
    assert (await world.client.get("/v1/tenant")).json()["changed_at"] is None
    assert (await world.client.put("/v1/tenant", json={"trains_shared_weights": True})).status_code == 200
    second = await world.episode()
    shown = {episode["id"]: episode["untrainable_reason"] for episode in (first, second)}
    assert shown == {first["id"]: "the tenant has not opted in to training", second["id"]: None}
    assert (await world.client.get("/v1/events?kind=tenant_opted_in")).json()["data"]


async def test_only_admins_speak_for_their_tenant(world: World) -> None:
    for who in ("agent", "operator"):
        denied = await world.client.put("/v1/tenant", json={"trains_shared_weights": False}, headers=world.headers(who))
        assert denied.status_code == 403
    assert (await world.client.put("/v1/tenant", json={"trains_shared_weights": "no"})).status_code == 400
    assert (await world.client.get("/v1/tenant")).json()["trains_shared_weights"]
