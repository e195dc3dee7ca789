"""Keys: who may do what, and that the tenant comes from the key alone."""

from __future__ import annotations

import httpx
import pytest

from tests.fakes.api import World


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic dXNlcjpwYXNz"},
        {"Authorization": "Bearer "},
        {"x-api-key": "oa_000000000000_wrong"},
    ],
)
async def test_without_a_valid_key_every_call_is_401(world: World, headers: dict[str, str]) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(world.app), base_url="http://test") as anonymous:
        answer = await anonymous.get("/v1/episodes", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["type"] == "authentication_error"


async def test_both_headers_carry_a_key(world: World) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(world.app), base_url="http://test") as client:
        for headers in (world.headers("agent"), {"x-api-key": world.secrets["agent"]}):
            assert (await client.get("/v1/episodes", headers=headers)).status_code == 200


async def test_a_bad_key_is_refused_before_its_body_is_read(world: World) -> None:
    answer = await world.client.post(
        "/v1/episodes",
        content=b"{not json",
        headers={"Authorization": "Bearer wrong", "content-type": "application/json"},
    )
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("who", "path", "status"),
    [
        ("agent", "/v1/episodes", 200),
        ("agent", "/v1/envs", 200),
        ("agent", "/v1/weights", 403),
        ("agent", "/v1/changes", 403),
        ("agent", "/v1/training", 403),
        ("agent", "/v1/keys", 403),
        ("agent", "/metrics", 403),
        ("operator", "/v1/weights", 200),
        ("operator", "/metrics", 200),
        ("operator", "/v1/episodes", 403),
        ("operator", "/v1/keys", 403),
        ("admin", "/v1/keys", 200),
        ("admin", "/v1/episodes", 403),
        ("admin", "/v1/weights", 403),
    ],
)
async def test_a_key_opens_what_its_scope_says_and_nothing_else(world: World, who: str, path: str, status: int) -> None:
    answer = await world.client.get(path, headers=world.headers(who))
    assert answer.status_code == status
    if status == 403:
        assert f"this one has: {who}" in answer.json()["error"]["message"]


async def test_a_revoked_key_opens_nothing_from_the_next_call_on(world: World) -> None:
    made = (await world.client.post("/v1/keys", json={"name": "ci", "scopes": ["agent"]})).json()
    headers = {"Authorization": f"Bearer {made['secret']}"}
    assert (await world.client.get("/v1/episodes", headers=headers)).status_code == 200
    assert (await world.client.delete(f"/v1/keys/{made['id']}")).status_code == 204
    assert (await world.client.get("/v1/episodes", headers=headers)).status_code == 401


async def test_a_listed_key_shows_no_secret(world: World) -> None:
    made = (await world.client.post("/v1/keys", json={"name": "ci", "scopes": ["agent"]})).json()
    listing = await world.client.get("/v1/keys")
    assert made["id"] in listing.text
    assert made["secret"] not in listing.text
    assert made["secret"].rsplit("_", 1)[1] not in listing.text
