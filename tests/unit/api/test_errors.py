"""One error shape for everything that is not a success."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from online_agent.errors import Busy, DatabaseBusy, EngineUnavailable, UnknownName
from tests.fakes.api import World


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error object, after a check that the answer is nothing but that."""
    body = answer.json()
    assert list(body) == ["error"], body
    assert set(body["error"]) == {"type", "message", "param", "code"}
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/nowhere", 404, "not_found"),
        ("PATCH", "/v1/episodes", 405, "method_not_allowed"),
        ("POST", "/healthz", 405, "method_not_allowed"),
        ("GET", "/v1/episodes/", 404, "not_found"),
    ],
)
async def test_unknown_paths_and_methods_answer_in_the_one_shape(
    client: httpx.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    answer = await client.request(method, path)
    assert answer.status_code == status
    assert error_of(answer)["code"] == code


@pytest.mark.parametrize(
    ("body", "param", "shown"),
    [
        ({}, "env", "required"),
        ({"env": 3}, "env", "got 3"),
        ({"env": "add_one", "sampling": {"temperature": 2.5}}, "sampling.temperature", "got 2.5"),
        ({"env": "add_one", "limits": {"max_turns": 0}}, "limits.max_turns", "got 0"),
        ({"env": "add_one", "limits": {"max_turns": "4"}}, "limits.max_turns", "got '4'"),
        ({"env": "add_one", "surprise": 1}, "surprise", "got 1"),
        ({"env": "add_one", "weight_version": 2**31}, "weight_version", "got 2147483648"),
        ([1], "body", "got [1]"),
        ("text", "body", "got 'text'"),
    ],
)
async def test_a_bad_body_is_400_and_names_the_field_and_the_value(
    client: httpx.AsyncClient, body: Any, param: str, shown: str
) -> None:
    answer = await client.post("/v1/episodes", json=body)
    assert answer.status_code == 400
    error = error_of(answer)
    assert error["param"] == param
    assert shown in error["message"]


@pytest.mark.parametrize(
    ("content", "media"),
    [
        (b'{"env": NaN}', "application/json"),
        (b"\xff\xfe", "application/json"),
        (b"[" * 5000, "application/json"),
        (b'{"env":' + b'{"a":' * 40 + b"1" + b"}" * 41, "application/json"),
        (b"env=add_one", "application/x-www-form-urlencoded"),
        (b"", "application/json"),
    ],
)
async def test_a_body_that_is_not_plain_json_is_400(client: httpx.AsyncClient, content: bytes, media: str) -> None:
    answer = await client.post("/v1/episodes", content=content, headers={"content-type": media})
    assert answer.status_code == 400, answer.text
    assert error_of(answer)["type"] == "invalid_request_error"


async def test_a_huge_value_is_not_sent_back_whole(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/episodes", json={"env": "x" * 100_000})
    assert answer.status_code == 400
    assert len(answer.content) < 1000


async def test_nul_in_the_address_is_400(client: httpx.AsyncClient) -> None:
    for path in ("/v1/episodes/a%00b", "/v1/episodes?env=a%00b"):
        assert (await client.get(path)).status_code == 400


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after"),
    [
        (Busy("256 episodes are queued", retry_after_s=2.4), 429, "busy", "3"),
        (DatabaseBusy("no lock for 30 s"), 503, "busy", "1"),
        (EngineUnavailable("no engine"), 503, "engine_unavailable", "1"),
        (UnknownName("no env", param="env"), 404, "unknown_name", None),
    ],
)
async def test_our_errors_keep_their_status_code_and_retry_after(
    world: World, error: Exception, status: int, code: str, retry_after: str | None
) -> None:
    world.runner.refuse = error
    answer = await world.client.post("/v1/episodes", json={"env": "add_one"})
    assert (answer.status_code, error_of(answer)["code"]) == (status, code)
    assert answer.headers.get("retry-after") == retry_after


async def test_a_defect_of_ours_is_500_without_its_details(world: World) -> None:
    world.runner.refuse = RuntimeError("secret detail")
    answer = await world.client.post("/v1/episodes", json={"env": "add_one"})
    assert answer.status_code == 500
    assert error_of(answer)["code"] == "internal_error"
    assert "secret detail" not in answer.text
