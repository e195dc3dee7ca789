"""Episodes over HTTP: started, waited for, listed, read whole, erased."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from online_agent.errors import Conflict
from tests.fakes.api import World


async def test_a_created_episode_is_answered_at_once_with_its_id(world: World) -> None:
    world.runner.hold()
    answer = await world.client.post("/v1/episodes", json={"env": "add_one", "task_id": "train-5"})
    assert answer.status_code == 201
    body = answer.json()
    assert (body["object"], body["status"], body["env"], body["task_id"]) == ("episode", "open", "add_one", "train-5")
    shown = (await world.client.get(f"/v1/episodes/{body['id']}")).json()
    assert shown["status"] == "open"
    world.runner.let_go()


async def test_wait_answers_with_the_verdict_and_the_version_that_answered(world: World) -> None:
    world.runner.version = 3
    episode = await world.episode(task_id="train-5")
    assert episode["status"] == "graded"
    assert episode["verdict"] == {"reward": 1.0, "is_success": True, "evidence": {"output": "1 passed"}}
    assert (episode["weight_version"], episode["oldest_version"], episode["pinned_version"]) == (3, 3, None)


async def test_an_unknown_environment_is_404_and_names_what_exists(world: World) -> None:
    answer = await world.client.post("/v1/episodes", json={"env": "nope"})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "no environment 'nope'; there is: add_one"


@pytest.mark.parametrize("task_id", ["nope", "train-x", "test-1"])
async def test_an_unknown_task_is_404_and_says_how_tasks_are_named(world: World, task_id: str) -> None:
    answer = await world.client.post("/v1/episodes", json={"env": "add_one", "task_id": task_id})
    assert answer.status_code == 404
    message = answer.json()["error"]["message"]
    assert repr(task_id) in message
    assert "train-<n>" in message
    assert world.runner.started == []


async def test_without_a_task_the_server_draws_a_new_one_each_time(world: World) -> None:
    drawn = [(await world.episode())["task_id"] for _ in range(3)]
    assert drawn == ["train-0", "train-1", "train-2"]
    assert (await world.episode(split="heldout"))["task_id"] == "heldout-3"  # behind the three that finished


async def test_missing_settings_come_from_the_configuration_and_given_ones_win(world: World) -> None:
    episode = await world.episode(sampling={"temperature": 0.0}, limits={"max_turns": 2})
    defaults = world.runtime.settings.agent
    assert episode["sampling"] == {"temperature": 0.0, "top_p": 1.0, "max_new_tokens": defaults.max_new_tokens}
    assert episode["limits"] == {"max_turns": 2, "max_tokens": defaults.max_tokens, "timeout_s": defaults.timeout_s}


async def test_a_pinned_version_that_does_not_serve_is_409(world: World) -> None:
    world.runner.refuse = Conflict("version 4 does not serve; version 1 does", param="weight_version")
    answer = await world.client.post("/v1/episodes", json={"env": "add_one", "weight_version": 4})
    assert answer.status_code == 409
    assert answer.json()["error"]["param"] == "weight_version"


async def test_metadata_is_kept_as_it_came_up_to_its_limit(world: World) -> None:
    metadata = {"ticket": 7, "tags": ["a", {"b": None}]}
    assert (await world.episode(metadata=metadata))["metadata"] == metadata
    answer = await world.client.post("/v1/episodes", json={"env": "add_one", "metadata": {"x": "y" * 20_000}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


async def test_include_spans_reads_the_episode_token_for_token(world: World) -> None:
    episode = await world.episode()
    await world.client.post(f"/v1/episodes/{episode['id']}/feedback", json={"reward": 0.5, "source": "person"})
    whole = (await world.client.get(f"/v1/episodes/{episode['id']}?include=spans&include=files")).json()
    (turn,) = whole["turns"]
    assert [span["kind"] for span in turn["spans"]] == ["prompt", "action", "observation"]
    assert turn["spans"][1] == {
        "kind": "action",
        "is_action": True,
        "token_ids": [7, 8, 9],
        "logprobs": [-0.5, -0.25, -1.0],
        "version_runs": [[1, 0, 3]],
    }
    assert [span["is_action"] for span in turn["spans"]] == [False, True, False]
    assert turn["tool_calls"] == [{"name": "edit_file", "arguments": {"path": "a.py"}, "error": None}]
    assert whole["feedback"][0]["reward"] == 0.5
    assert whole["files"] == {"a.py": "x = 2\n"}


async def test_without_include_only_the_summary_is_read(world: World) -> None:
    episode = await world.episode()
    summary = (await world.client.get(f"/v1/episodes/{episode['id']}")).json()
    assert (summary["turns"], summary["feedback"], summary["files"]) == (None, None, None)


async def test_pages_hold_every_episode_once_newest_first(world: World) -> None:
    made = [(await world.episode())["id"] for _ in range(5)]
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = (await world.client.get("/v1/episodes", params=query)).json()
        seen += [row["id"] for row in page["data"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert seen == made[::-1]


async def test_filters_choose_by_status_environment_and_version(world: World) -> None:
    first = await world.episode()
    world.runner.version = 2
    second = await world.episode()

    async def ids(**query: Any) -> list[str]:
        return [row["id"] for row in (await world.client.get("/v1/episodes", params=query)).json()["data"]]

    assert await ids(weight_version=1) == [first["id"]]
    assert await ids(weight_version=2) == [second["id"]]
    assert await ids(status="graded", env="add_one") == [second["id"], first["id"]]
    assert await ids(status="trained") == []
    answer = await world.client.get("/v1/episodes?status=lost")
    assert answer.status_code == 400
    assert "'lost'" in answer.json()["error"]["message"]


async def test_an_erased_episode_is_gone(world: World) -> None:
    episode = await world.episode()
    assert (await world.client.delete(f"/v1/episodes/{episode['id']}")).status_code == 204
    assert (await world.client.get(f"/v1/episodes/{episode['id']}")).status_code == 404
    assert (await world.client.delete(f"/v1/episodes/{episode['id']}")).status_code == 404


async def test_while_shutting_down_no_episode_starts_and_readyz_says_so(world: World) -> None:
    world.runtime.is_draining = True
    answer = await world.client.post("/v1/episodes", json={"env": "add_one"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
    assert answer.headers["retry-after"] == "5"
    ready = await world.client.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["accepting"]) == (503, False)


async def test_many_waiters_hold_no_store_thread(world: World) -> None:
    """C25 for long polls: 64 requests wait, and a read is still answered at once."""
    world.runner.hold()
    waiting = [asyncio.create_task(world.episode()) for _ in range(64)]
    await world.runner.until_started(64)
    answer = await asyncio.wait_for(world.client.get("/v1/envs"), timeout=2)
    assert answer.status_code == 200
    world.runner.let_go()
    assert {episode["status"] for episode in await asyncio.gather(*waiting)} == {"graded"}
