"""What holds for every route: a key, one tenant's view, one error shape, a document that says so."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.app import create_app
from online_agent.config.settings import Settings
from tests.fakes.api import World, open_world

OPEN_PATHS = {"/healthz", "/readyz", "/dashboard"}
EXAMPLES = {"version": "1", "env": "add_one"}
METHODS = ("get", "post", "put", "patch", "delete")


def operations(app: FastAPI) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path template and description of each operation."""
    for path, item in app.openapi()["paths"].items():
        for method in METHODS:
            if method in item:
                yield method.upper(), path, item[method]


def address(path: str, **ids: str) -> str:
    """The template with ids filled in; an unknown parameter gets an id that does not exist."""
    values = {**EXAMPLES, **ids}
    return re.sub(r"{(\w+)}", lambda match: values.get(match[1], "none"), path)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    return create_app(Settings(data_dir=tmp_path))


async def test_every_route_but_three_needs_a_key(world: World) -> None:
    seen = set()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(world.app), base_url="http://test") as anonymous:
        for method, path, _ in operations(world.app):
            answer = await anonymous.request(method, address(path), json={})
            assert (answer.status_code == 401) == (path not in OPEN_PATHS), f"{method} {path}: {answer.status_code}"
            seen.add(path)
    assert seen >= OPEN_PATHS
    assert len(seen) >= 25


async def test_every_id_of_another_tenant_is_404_and_stays_untouched(world: World) -> None:
    episode = await world.episode()
    change = {"env": "add_one", "kind": "rename_tool", "params": {"tool": "edit_file", "to": "patch_file"}}
    change_id = (await world.client.post("/v1/changes", json=change)).json()["id"]
    key_id = (await world.client.post("/v1/keys", json={"name": "ci", "scopes": ["agent"]})).json()["id"]
    ids = {"episode_id": episode["id"], "change_id": change_id, "key_id": key_id}
    tried = 0
    for method, path, _ in operations(world.app):
        if not any(f"{{{name}}}" in path for name in ids):
            continue
        body = {"reward": 0.5, "source": "x"} if path.endswith("/feedback") else {}
        answer = await world.client.request(method, address(path, **ids), json=body, headers=world.headers("other"))
        assert answer.status_code == 404, f"{method} {path}: {answer.status_code}"
        tried += 1
    assert tried >= 6
    assert (await world.client.get(f"/v1/episodes/{episode['id']}")).json()["status"] == "graded"
    assert (await world.client.get("/v1/changes")).json()["data"][0]["state"] == "active"
    assert all(key["revoked_at"] is None for key in (await world.client.get("/v1/keys")).json()["data"])


async def test_lists_show_the_own_tenant_only(world: World) -> None:
    await world.episode()
    change = {"env": "add_one", "kind": "rename_tool", "params": {"tool": "edit_file", "to": "patch_file"}}
    await world.client.post("/v1/changes", json=change)
    own_keys = {key["id"] for key in (await world.client.get("/v1/keys")).json()["data"]}
    for path in ("/v1/episodes", "/v1/changes", "/v1/events"):
        assert (await world.client.get(path)).json()["data"]
        assert (await world.client.get(path, headers=world.headers("other"))).json()["data"] == []
    others = (await world.client.get("/v1/keys", headers=world.headers("other"))).json()["data"]
    assert own_keys.isdisjoint(key["id"] for key in others)


def test_every_operation_is_named_tagged_described_and_says_how_it_fails(app: FastAPI) -> None:
    names = [operation["operationId"] for _, _, operation in operations(app)]
    assert len(names) == len(set(names))
    for method, path, operation in operations(app):
        assert operation["tags"], path
        assert operation["description"], path
        assert "422" not in operation["responses"], path
        error = operation["responses"]["default"]["content"]["application/json"]["schema"]
        shape = "AnthropicErrorAnswer" if path.startswith("/v1/messages") else "ErrorAnswer"
        assert error == {"$ref": f"#/components/schemas/{shape}"}
        assert ("security" in operation) == (path not in OPEN_PATHS), f"{method} {path}"


def test_every_creating_call_takes_an_idempotency_key(app: FastAPI) -> None:
    with_key = {
        path
        for method, path, operation in operations(app)
        if any(parameter["name"] == "Idempotency-Key" for parameter in operation.get("parameters", ()))
    }
    assert with_key == {
        "/v1/episodes",
        "/v1/episodes/import",
        "/v1/episodes/{episode_id}/close",
        "/v1/episodes/{episode_id}/feedback",
        "/v1/changes",
        "/v1/chat/completions",
        "/v1/keys",
        "/v1/keys/{key_id}/rotate",
        "/v1/messages",
        "/v1/responses",
        "/v1/weights/{version}/rollback",
    }


def test_every_reference_in_the_document_resolves(app: FastAPI) -> None:
    document = app.openapi()
    references = set(re.findall(r"'\$ref': '#/components/schemas/(\w+)'", str(document)))
    assert references <= set(document["components"]["schemas"])
