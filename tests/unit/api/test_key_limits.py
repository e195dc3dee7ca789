"""Keys that rotate, expire and have limits, through HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from api.keys.limiter import KeyLimiter, OverLimit
from online_agent.types import Scope
from tests.fakes.api import TENANT, World

EPISODES = "/v1/episodes"


async def make(world: World, **more: Any) -> tuple[str, dict[str, str]]:
    answer = await world.client.post("/v1/keys", json={"name": "bot", "scopes": ["agent"], **more})
    assert answer.status_code == 201, answer.text
    made = answer.json()
    return made["id"], {"Authorization": f"Bearer {made['secret']}"}


async def status(world: World, headers: dict[str, str], path: str = EPISODES) -> int:
    return (await world.client.get(path, headers=headers)).status_code


async def test_a_rotated_key_opens_with_both_secrets_until_the_overlap_ends(world: World) -> None:
    key_id, old = await make(world)
    answer = await world.client.post(f"/v1/keys/{key_id}/rotate", json={"overlap_s": 3600})
    assert answer.status_code == 200
    new = {"Authorization": f"Bearer {answer.json()['secret']}"}
    assert answer.json()["id"] == key_id
    assert [await status(world, old), await status(world, new)] == [200, 200]
    await world.client.post(f"/v1/keys/{key_id}/rotate", json={"overlap_s": 0})
    assert [await status(world, old), await status(world, new)] == [401, 401]


async def test_a_repeated_rotation_under_one_idempotency_key_rotates_once_and_shows_the_secret_once(
    world: World,
) -> None:
    key_id, _ = await make(world)
    calls = [
        await world.client.post(f"/v1/keys/{key_id}/rotate", json={}, headers={"Idempotency-Key": "r1"})
        for _ in range(2)
    ]
    first, second = (call.json() for call in calls)
    assert second == {**first, "secret": None}
    assert await status(world, {"Authorization": f"Bearer {first['secret']}"}) == 200


async def test_a_revoked_or_unknown_key_is_not_rotated(world: World) -> None:
    key_id, _ = await make(world)
    await world.client.delete(f"/v1/keys/{key_id}")
    assert (await world.client.post(f"/v1/keys/{key_id}/rotate", json={})).status_code == 409
    assert (await world.client.post("/v1/keys/key_none/rotate", json={})).status_code == 404


@pytest.mark.parametrize(
    "body", [{"expires_in_s": 0}, {"requests_per_minute": 0}, {"tokens_per_day": -1}, {"tokens_per_day": "7"}]
)
async def test_a_limit_that_allows_nothing_is_refused(world: World, body: dict[str, Any]) -> None:
    answer = await world.client.post("/v1/keys", json={"name": "bot", "scopes": ["agent"], **body})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == next(iter(body))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_over_its_requests_a_key_gets_429_in_the_shape_of_the_protocol(world: World, path: str) -> None:
    _, headers = await make(world, requests_per_minute=2)
    assert [await status(world, headers) for _ in range(3)] == [200, 200, 429]
    answer = await world.client.post(path, json={}, headers=headers)
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["retry-after"]) <= 30
    error = answer.json()["error"]
    assert error["type"] == "rate_limit_error"
    if path == "/v1/messages":
        assert answer.json()["type"] == "error"
        assert set(error) == {"type", "message"}
    else:
        assert error["code"] == "rate_limit_exceeded"


async def test_the_limit_of_one_key_is_not_that_of_another(world: World) -> None:
    _, first = await make(world, requests_per_minute=1)
    _, second = await make(world, requests_per_minute=1)
    assert [await status(world, headers) for headers in (first, first, second)] == [200, 429, 200]


async def test_tokens_are_counted_in_the_store_and_only_new_answers_are_refused(world: World) -> None:
    """An episode of the toy runner holds one turn with two tokens of prompt and three sampled ones."""
    _, headers = await make(world, tokens_per_day=10)
    statuses = []
    for _ in range(3):
        answer = await world.client.post(f"{EPISODES}?wait=true", json={"env": "add_one"}, headers=headers)
        statuses.append(answer.status_code)
    assert statuses == [201, 201, 429]
    assert "10 tokens a day (UTC) and has used 10" in answer.json()["error"]["message"]
    assert 1 <= int(answer.headers["retry-after"]) <= 86_400
    assert await status(world, headers) == 200
    assert (await world.client.post(f"{EPISODES}?wait=true", json={"env": "add_one"})).status_code == 201


async def test_a_key_with_a_token_limit_cannot_ask_for_what_is_not_counted(world: World) -> None:
    _, headers = await make(world, tokens_per_day=10)
    answer = await world.client.post("/v1/chat/completions", json={}, headers={**headers, "X-Record": "false"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "X-Record")


async def test_the_list_shows_when_a_key_was_last_used(world: World) -> None:
    key_id, headers = await make(world)
    await status(world, headers)
    for _ in range(100):
        row = next(key for key in (await world.client.get("/v1/keys")).json()["data"] if key["id"] == key_id)
        if row["last_used_at"] is not None:
            break
    assert row["last_used_at"] >= row["created_at"]


def test_a_bucket_fills_evenly_and_says_when_the_next_request_is_free() -> None:
    now = 0.0
    limiter = KeyLimiter(lambda: now)
    for _ in range(4):
        limiter.take("k", per_minute=4)
    with pytest.raises(OverLimit) as refused:
        limiter.take("k", per_minute=4)
    assert refused.value.retry_after_s == pytest.approx(15)
    now = 14.9
    with pytest.raises(OverLimit):
        limiter.take("k", per_minute=4)
    now = 15.0
    limiter.take("k", per_minute=4)
    now = 10_000.0
    for _ in range(4):
        limiter.take("k", per_minute=4)
    with pytest.raises(OverLimit):
        limiter.take("k", per_minute=4)


async def test_an_expired_key_is_401(world: World) -> None:
    with world.db.transaction() as tx:
        _, secret = tx.keys.create(TENANT, "brief", [Scope.AGENT], expires_in_s=1e-6)
    assert await status(world, {"Authorization": f"Bearer {secret}"}) == 401
