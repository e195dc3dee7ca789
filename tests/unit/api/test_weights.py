"""Weight versions over HTTP: read, pinned, promoted, rolled back."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from online_agent.config.serving import ApiSettings
from online_agent.promotion.rollback import REQUEST
from online_agent.store.records import VersionNew
from online_agent.types import VersionOrigin, VersionState
from tests.fakes.api import World, open_world


def do_rollback(world: World, target: int, request_id: str, state: VersionState = VersionState.SERVING) -> None:
    """What the worker does: a new version with the content of ``target``, in ``state``."""
    with world.db.transaction() as tx:
        version = tx.weights.next_version()
        metrics = {REQUEST: request_id}
        tx.weights.insert(
            VersionNew(version, VersionOrigin.ROLLBACK, target, content_hash=f"h{target}", metrics=metrics)
        )
        if state is VersionState.SERVING:
            tx.weights.move(version, {VersionState.CANDIDATE}, VersionState.VERIFIED)
            tx.weights.move(version, {VersionState.VERIFIED}, VersionState.SERVING)
        elif state is VersionState.REJECTED:
            tx.weights.move(version, {VersionState.CANDIDATE}, VersionState.REJECTED, "the engine refused it")


def add_candidate(world: World, value: float | None = None) -> None:
    """Version 2 waits beside version 1, which serves; its tensors hold ``value``."""
    world.write_version(1)
    world.write_version(2, value)
    with world.db.transaction() as tx:
        tx.weights.insert(VersionNew(2, VersionOrigin.STEP, 1))


@pytest.fixture
def three_versions(world: World) -> World:
    world.serve_version(2, parent=1)
    world.serve_version(3, parent=2)
    for version in (1, 2, 3):
        world.write_version(version)
    world.jobs.on_rollback = lambda target, request_id: do_rollback(world, target, request_id)
    return world


async def test_versions_are_listed_newest_first_with_the_one_that_serves(three_versions: World) -> None:
    body = (await three_versions.client.get("/v1/weights")).json()
    assert [(row["version"], row["parent"], row["state"]) for row in body["data"]] == [
        (3, 2, "serving"),
        (2, 1, "retired"),
        (1, None, "retired"),
    ]
    assert (body["serving"], body["next_cursor"]) == (3, None)
    page = (await three_versions.client.get("/v1/weights?limit=2")).json()
    rest = (await three_versions.client.get(f"/v1/weights?limit=2&cursor={page['next_cursor']}")).json()
    assert [row["version"] for row in rest["data"]] == [1]


async def test_a_rollback_answers_when_the_new_version_serves(three_versions: World) -> None:
    answer = await three_versions.client.post("/v1/weights/1/rollback")
    assert (answer.status_code, answer.json()) == (200, {"version": 4, "target": 1, "is_serving": True})
    old, new = [(await three_versions.client.get(f"/v1/weights/{v}")).json() for v in (1, 4)]
    assert new["content_hash"] == old["content_hash"]
    assert (new["state"], new["origin"], new["parent"]) == ("serving", "rollback", 1)


async def test_a_rollback_waits_for_the_worker(three_versions: World) -> None:
    requests: list[str] = []
    three_versions.jobs.on_rollback = lambda target, request_id: requests.append(request_id)
    asked = asyncio.create_task(three_versions.client.post("/v1/weights/1/rollback"))
    await asyncio.sleep(0.2)
    assert not asked.done()
    do_rollback(three_versions, 1, "someone else's")
    await asyncio.sleep(0.2)
    assert not asked.done()
    do_rollback(three_versions, 1, *requests)
    assert (await asked).json()["version"] == 5


async def test_a_repeated_rollback_with_the_same_key_happens_once(three_versions: World) -> None:
    headers = {"Idempotency-Key": "k1"}
    answers = [await three_versions.client.post("/v1/weights/1/rollback", headers=headers) for _ in range(2)]
    assert answers[0].json() == answers[1].json()
    assert len(three_versions.jobs.sent) == 1


async def test_a_rollback_that_the_engine_refused_is_503_with_the_reason(three_versions: World) -> None:
    three_versions.jobs.on_rollback = lambda target, request_id: do_rollback(
        three_versions, target, request_id, VersionState.REJECTED
    )
    answer = await three_versions.client.post("/v1/weights/1/rollback")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "swap_failed")
    assert "the engine refused it" in answer.json()["error"]["message"]


async def test_a_rollback_whose_wait_ends_is_202_and_not_yet_serving(tmp_path: Path) -> None:
    async with open_world(tmp_path, api=ApiSettings(held_timeout_s=0.1)) as world:
        world.write_version(1)
        answer = await world.client.post("/v1/weights/1/rollback")
    assert (answer.status_code, answer.json()) == (202, {"version": None, "target": 1, "is_serving": False})


async def test_without_a_broker_a_rollback_is_503_in_plain_words(three_versions: World) -> None:
    three_versions.jobs.is_down = True
    answer = await three_versions.client.post("/v1/weights/1/rollback")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "broker_unavailable")
    assert "start Redis" in answer.json()["error"]["message"]


async def test_a_rollback_that_the_worker_refused_is_409_with_the_reason(three_versions: World) -> None:
    def refuse(target: int, request_id: str) -> None:
        with three_versions.db.transaction() as tx:
            tx.events.add("rollback_refused", {"request": request_id, "reason": "version 1 is damaged"})

    three_versions.jobs.on_rollback = refuse
    answer = await three_versions.client.post("/v1/weights/1/rollback")
    assert answer.status_code == 409
    assert "version 1 is damaged" in answer.json()["error"]["message"]


async def test_a_damaged_version_is_refused_before_anything_is_asked_for(three_versions: World) -> None:
    model = three_versions.runtime.weights.path(1) / "serving/model.safetensors"
    model.chmod(0o644)
    model.write_bytes(model.read_bytes()[:-1])
    answer = await three_versions.client.post("/v1/weights/1/rollback")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "corrupt_version")
    assert three_versions.jobs.sent == []


async def test_one_version_shows_the_checksums_of_its_files(three_versions: World) -> None:
    files = (await three_versions.client.get("/v1/weights/2")).json()["files"]
    assert set(files) >= {"serving/model.safetensors", "learner/critic.safetensors"}
    assert all(len(digest) == 64 for digest in files.values())


async def test_a_version_that_never_served_cannot_be_rolled_back_to(world: World) -> None:
    with world.db.transaction() as tx:
        tx.weights.insert(VersionNew(2, VersionOrigin.STEP, 1))
    answer = await world.client.post("/v1/weights/2/rollback")
    assert answer.status_code == 409
    assert world.jobs.sent == []


async def test_a_promotion_answers_when_the_candidate_serves(world: World) -> None:
    add_candidate(world)

    def publish(version: int) -> None:
        with world.db.transaction() as tx:
            tx.weights.move(version, {VersionState.CANDIDATE}, VersionState.VERIFIED)
            tx.weights.move(version, {VersionState.VERIFIED}, VersionState.SERVING)

    world.jobs.on_publish = publish
    answer = await world.client.post("/v1/weights/2/promote")
    assert (answer.status_code, answer.json()["is_serving"]) == (200, True)
    assert world.jobs.sent == [("publish", 2)]
    assert (await world.client.post("/v1/weights/2/promote")).json()["is_serving"]  # serves already: nothing to do
    assert len(world.jobs.sent) == 1


@pytest.mark.parametrize("value", [math.nan, math.inf])
async def test_c32_a_candidate_that_is_not_finite_is_refused_and_what_serves_stays(world: World, value: float) -> None:
    add_candidate(world, value)
    answer = await world.client.post("/v1/weights/2/promote")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "corrupt_version")
    assert "w is not finite at element 0" in answer.json()["error"]["message"]
    assert world.jobs.sent == []
    assert (await world.client.get("/v1/weights")).json()["serving"] == 1


async def test_a_candidate_that_a_newer_one_overtook_is_409(world: World) -> None:
    add_candidate(world)

    def supersede(version: int) -> None:
        with world.db.transaction() as tx:
            tx.weights.move(version, {VersionState.CANDIDATE}, VersionState.RETIRED, "superseded by version 3")

    world.jobs.on_publish = supersede
    answer = await world.client.post("/v1/weights/2/promote")
    assert answer.status_code == 409
    assert "superseded by version 3" in answer.json()["error"]["message"]


async def test_a_retired_version_is_promoted_by_rollback_only(three_versions: World) -> None:
    answer = await three_versions.client.post("/v1/weights/1/promote")
    assert answer.status_code == 409
    assert "rollback" in answer.json()["error"]["message"]


async def test_pin_and_unpin(world: World) -> None:
    assert (await world.client.post("/v1/weights/1/pin")).json()["is_pinned"] is True
    assert (await world.client.post("/v1/weights/1/unpin")).json()["is_pinned"] is False


@pytest.mark.parametrize("call", ["", "/episodes"])
async def test_an_unknown_version_is_404(world: World, call: str) -> None:
    assert (await world.client.get(f"/v1/weights/99{call}")).status_code == 404


@pytest.mark.parametrize("call", ["rollback", "promote", "pin", "unpin"])
async def test_an_unknown_version_cannot_be_acted_on(world: World, call: str) -> None:
    assert (await world.client.post(f"/v1/weights/99/{call}")).status_code == 404
    assert (await world.client.post(f"/v1/weights/{2**40}/{call}")).status_code == 400
    assert world.jobs.sent == []
