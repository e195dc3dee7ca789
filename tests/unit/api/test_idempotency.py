"""One effect per Idempotency-Key (C22): repeats, twins, other bodies, handlers that die, rows that are erased."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from api import idempotency
from api.idempotency import Claim, Outcome, once
from online_agent.errors import Conflict, EngineUnavailable
from tests.fakes.api import TENANT, World

BODY = {"env": "add_one"}


async def post(world: World, path: str, body: Any, key: str, who: str = "all") -> httpx.Response:
    headers = {"Idempotency-Key": key, **world.headers(who)}
    return await world.client.post(path, json=body, headers=headers)


async def test_a_repeat_gets_the_first_answer_and_says_that_it_is_one(world: World) -> None:
    first, second = await post(world, "/v1/episodes", BODY, "k1"), await post(world, "/v1/episodes", BODY, "k1")
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert "idempotent-replay" not in first.headers
    assert second.headers["idempotent-replay"] == "true"
    assert len(world.runner.started) == 1


async def test_two_at_the_same_time_make_one_episode_and_get_the_same_id(world: World) -> None:
    world.runner.start_delay_s = 0.1
    answers = await asyncio.gather(*(post(world, "/v1/episodes", BODY, "k1") for _ in range(8)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(world.runner.started) == 1
    listing = await world.client.get("/v1/episodes")
    assert len(listing.json()["data"]) == 1


async def test_the_same_key_with_another_body_is_409(world: World) -> None:
    await post(world, "/v1/episodes", BODY, "k1")
    answer = await post(world, "/v1/episodes", {**BODY, "task_id": "train-7"}, "k1")
    assert answer.status_code == 409
    assert answer.json()["error"]["param"] == "Idempotency-Key"
    assert len(world.runner.started) == 1


async def test_bodies_that_mean_the_same_are_the_same_body(world: World) -> None:
    first = await post(world, "/v1/episodes", {"env": "add_one", "split": "train"}, "k1")
    second = await post(world, "/v1/episodes", {"env": "add_one"}, "k1")
    assert first.json() == second.json()


async def test_the_same_key_on_another_call_is_409(world: World) -> None:
    await post(world, "/v1/episodes", BODY, "k1")
    answer = await post(world, "/v1/keys", {"name": "x", "scopes": ["agent"]}, "k1")
    assert answer.status_code == 409


async def test_two_tenants_may_use_the_same_key(world: World) -> None:
    first = await post(world, "/v1/episodes", BODY, "k1")
    second = await post(world, "/v1/episodes", BODY, "k1", who="other")
    assert first.json()["id"] != second.json()["id"]


async def test_a_handler_that_failed_frees_its_key(world: World) -> None:
    world.runner.refuse = EngineUnavailable("no engine")
    assert (await post(world, "/v1/episodes", BODY, "k1")).status_code == 503
    assert (await post(world, "/v1/episodes", BODY, "k1")).status_code == 201
    assert len(world.runner.started) == 1


async def test_a_request_that_is_cut_off_midway_still_has_its_one_effect(world: World) -> None:
    claim = Claim(TENANT, "k1", "POST /v1/episodes", "hash")
    has_begun, may_end = asyncio.Event(), asyncio.Event()

    async def work() -> Outcome:
        has_begun.set()
        await may_end.wait()
        return Outcome(201, {"id": "first"})

    request = asyncio.create_task(once(world.runtime, claim, work))
    await has_begun.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    may_end.set()

    async def again() -> Outcome:
        raise AssertionError("the first request still has its effect")

    assert (await once(world.runtime, claim, again)).body == {"id": "first"}


async def test_a_handler_whose_process_died_frees_its_key_when_its_lease_ends(world: World) -> None:
    with world.db.transaction() as tx:
        tx.idempotency.begin(TENANT, "k1", "POST /v1/episodes", idempotency.body_hash(None), lease_s=0.05)
    await asyncio.sleep(0.1)
    claim = Claim(TENANT, "k1", "POST /v1/episodes", idempotency.body_hash(None))

    async def work() -> Outcome:
        return Outcome(201, {"id": "x"})

    assert (await once(world.runtime, claim, work)).status == 201


async def test_a_twin_that_waited_too_long_gets_409_with_retry_after(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "WAIT_S", 0.05)
    claim = Claim(TENANT, "k1", "route", "hash")
    with world.db.transaction() as tx:
        tx.idempotency.begin(claim.tenant_id, claim.key, claim.route, claim.body_hash)

    async def work() -> Outcome:
        raise AssertionError("the other request holds the key")

    with pytest.raises(Conflict) as refused:
        await once(world.runtime, claim, work)
    assert refused.value.retry_after_s == 1


async def test_a_key_is_remembered_after_its_episode_is_erased(world: World) -> None:
    first = await post(world, "/v1/episodes?wait=true", BODY, "k1")
    episode_id = first.json()["id"]
    assert (await world.client.delete(f"/v1/episodes/{episode_id}")).status_code == 204
    again = await post(world, "/v1/episodes?wait=true", BODY, "k1")
    assert (again.status_code, again.json()["id"]) == (201, episode_id)
    assert len(world.runner.started) == 1
    assert (await world.client.get(f"/v1/episodes/{episode_id}")).status_code == 404


async def test_a_resend_after_a_client_timeout_joins_the_episode_that_runs(world: World) -> None:
    world.runner.hold()
    first = asyncio.create_task(post(world, "/v1/episodes?wait=true", BODY, "k1"))
    await world.runner.until_started(1)
    first.cancel()  # the client gave up
    resent = asyncio.create_task(post(world, "/v1/episodes?wait=true", BODY, "k1"))
    await asyncio.sleep(0.1)
    world.runner.let_go()
    answer = await resent
    assert answer.json()["status"] == "graded"
    assert len(world.runner.started) == 1


async def test_a_repeat_of_a_new_key_does_not_show_its_secret_again(world: World) -> None:
    body = {"name": "ci", "scopes": ["agent"]}
    first, second = await post(world, "/v1/keys", body, "k1"), await post(world, "/v1/keys", body, "k1")
    assert first.json()["secret"].startswith("oa_")
    assert second.json() == {**first.json(), "secret": None}


async def test_a_repeat_of_feedback_is_whole_although_its_text_is_not_remembered(world: World) -> None:
    episode = await world.episode()
    path, body = f"/v1/episodes/{episode['id']}/feedback", {"text": "well done", "source": "a person"}
    first, second = await post(world, path, body, "k1"), await post(world, path, body, "k1")
    assert first.json() == second.json()
    assert second.json()["text"] == "well done"
    with world.db.reading() as tx:
        assert len(tx.feedback.of_episode(TENANT, episode["id"])) == 1


async def test_work_that_outlasts_its_lease_keeps_its_key(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """C22: whoever repeats a long call does not start it a second time."""
    monkeypatch.setattr(idempotency, "RENEW_S", 0.01)
    claim = Claim(TENANT, "k1", "POST /v1/x", "h")
    is_over = asyncio.Event()

    async def long() -> Outcome:
        await is_over.wait()
        return Outcome(200, {"n": 1})

    first = asyncio.create_task(once(world.runtime, claim, long))
    await asyncio.sleep(0.05)
    with world.db.transaction() as tx:
        tx.idempotency.renew(TENANT, "k1", lease_s=-1.0)  # its lease has run out
    await asyncio.sleep(0.2)
    second = asyncio.create_task(once(world.runtime, claim, long))
    await asyncio.sleep(0.05)
    is_over.set()
    assert await first == Outcome(200, {"n": 1})
    assert await second == Outcome(200, {"n": 1}, is_replay=True)
