"""Groups of episodes over HTTP: started together, waited for, listed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from online_agent.config.serving import AgentSettings
from online_agent.config.training import LearnerSettings
from online_agent.errors import Busy
from tests.fakes.api import World, open_world


@pytest.fixture
async def grouping(tmp_path: Path) -> AsyncIterator[World]:
    """A service whose operator asked for groups of three."""
    async with open_world(tmp_path, agent=AgentSettings(group_size=3)) as opened:
        yield opened


async def _post(world: World, query: str = "", headers: dict[str, str] | None = None, **body: Any) -> dict[str, Any]:
    answer = await world.client.post(f"/v1/episodes{query}", json={"env": "add_one", **body}, headers=headers)
    assert answer.status_code == 201, answer.text
    content: dict[str, Any] = answer.json()
    return content


async def test_a_group_is_answered_at_once_with_its_first_episode_and_all_ids(world: World) -> None:
    world.runner.hold()
    created = await _post(world, task_id="train-5", group_size=4)
    assert (created["id"], len(set(created["episode_ids"])), created["status"]) == (
        created["episode_ids"][0],
        4,
        "open",
    )
    for episode_id in created["episode_ids"]:
        row = (await world.client.get(f"/v1/episodes/{episode_id}")).json()
        assert (row["group_id"], row["group_size"], row["task_id"]) == (created["group_id"], 4, "train-5")
    world.runner.let_go()


async def test_waiting_for_a_group_answers_with_the_verdict_of_every_member(world: World) -> None:
    answered = await _post(world, "?wait=true", group_size=3)
    assert answered["verdict"]["reward"] == 1.0
    assert [member["id"] for member in answered["members"]] == answered["episode_ids"]
    assert [(m["status"], m["group_id"]) for m in answered["members"]] == [("graded", answered["group_id"])] * 3


async def test_the_members_of_a_group_are_listed_by_its_id(world: World) -> None:
    await world.episode()
    first, second = await _post(world, "?wait=true", group_size=2), await _post(world, "?wait=true", group_size=2)
    listed = (await world.client.get("/v1/episodes", params={"group_id": first["group_id"]})).json()["data"]
    assert [row["id"] for row in listed] == first["episode_ids"][::-1]
    of_other = await world.client.get(
        "/v1/episodes", params={"group_id": second["group_id"]}, headers=world.headers("other")
    )
    assert of_other.json()["data"] == []


async def test_an_episode_alone_names_no_group(world: World) -> None:
    created = await _post(world)
    assert (created["group_id"], created["episode_ids"]) == (None, [created["id"]])
    answered = await _post(world, "?wait=true", group_size=1)
    assert (answered["group_id"], answered["group_size"], "members" in answered) == (None, None, False)


async def test_a_group_draws_one_task_and_the_next_group_another(world: World) -> None:
    tasks = [(await _post(world, group_size=2))["task_id"] for _ in range(2)]
    assert tasks == ["train-0", "train-1"]


async def test_a_group_cannot_be_streamed(world: World) -> None:
    answer = await world.client.post(
        "/v1/episodes", json={"env": "add_one", "group_size": 2}, headers={"Accept": "text/event-stream"}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "group_size")
    assert answer.json()["error"]["message"] == "a stream tells of one episode, not of a group of 2"
    assert world.runner.started == []


@pytest.mark.parametrize("size", [0, 65, -1, "many", 2.5])
async def test_another_group_size_than_1_to_64_is_refused_with_the_value(world: World, size: Any) -> None:
    answer = await world.client.post("/v1/episodes", json={"env": "add_one", "group_size": size})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "group_size")
    assert str(size) in answer.json()["error"]["message"]


async def test_a_group_that_does_not_fit_is_told_when_to_come_back(world: World) -> None:
    world.runner.refuse = Busy("320 episodes may be under way, there is room for 1", retry_after_s=1.0)
    answer = await world.client.post("/v1/episodes", json={"env": "add_one", "group_size": 2})
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")


async def test_a_repeat_with_the_same_key_joins_the_same_group(world: World) -> None:
    first = await _post(world, headers={"Idempotency-Key": "k"}, group_size=3)
    again = await _post(world, "?wait=true", headers={"Idempotency-Key": "k"}, group_size=3)
    assert (again["episode_ids"], again["group_id"]) == (first["episode_ids"], first["group_id"])
    assert len(again["members"]) == 3
    other = await world.client.post(
        "/v1/episodes", json={"env": "add_one", "group_size": 2}, headers={"Idempotency-Key": "k"}
    )
    assert other.status_code == 409
    assert len(world.runner.started) == 1


async def test_a_member_that_was_erased_is_missing_from_the_answer(world: World) -> None:
    first = await _post(world, "?wait=true", headers={"Idempotency-Key": "k"}, group_size=3)
    await world.client.delete(f"/v1/episodes/{first['episode_ids'][1]}")
    again = await _post(world, "?wait=true", headers={"Idempotency-Key": "k"}, group_size=3)
    assert [m["id"] for m in again["members"]] == [first["episode_ids"][0], first["episode_ids"][2]]


async def test_the_setting_makes_a_group_of_every_request_that_can_be_trained_on(grouping: World) -> None:
    assert len((await _post(grouping))["episode_ids"]) == 3
    assert len((await _post(grouping, task_id="train-9"))["episode_ids"]) == 3


@pytest.mark.parametrize(
    "body",
    [
        {"task_id": "heldout-1"},
        {"split": "heldout"},
        {"sampling": {"temperature": 0.0}},
        {"sampling": {"top_p": 0.9}},
        {"weight_version": 1},
        {"group_size": 1},
    ],
)
async def test_the_setting_leaves_alone_what_is_not_trained_on_or_asked_for_alone(
    grouping: World, body: dict[str, Any]
) -> None:
    assert (await _post(grouping, **body))["group_id"] is None


async def test_what_a_client_asks_for_goes_before_the_setting(grouping: World) -> None:
    assert len((await _post(grouping, group_size=2))["episode_ids"]) == 2
    assert len((await _post(grouping, task_id="heldout-1", group_size=2))["episode_ids"]) == 2


async def test_the_setting_does_not_touch_a_stream(grouping: World) -> None:
    answer = await grouping.client.post(
        "/v1/episodes", json={"env": "add_one"}, headers={"Accept": "text/event-stream"}
    )
    assert answer.status_code == 200, answer.text
    row = (await grouping.client.get(f"/v1/episodes/{answer.headers['X-Episode-Id']}")).json()
    assert row["group_id"] is None


async def test_for_a_recipe_of_groups_only_whole_groups_are_ready(tmp_path: Path) -> None:
    async with open_world(tmp_path, learner=LearnerSettings(recipe="grpo")) as world:
        await world.episode()
        world.runner.hold()
        group = await _post(world, group_size=3)
        for episode_id in group["episode_ids"][:2]:
            world.runner.finish(episode_id)

        async def ready() -> tuple[int, bool]:
            training = (await world.client.get("/v1/training")).json()
            assert (training["recipe"], training["group_size"]) == ("grpo", 4)
            num_ready = training["num_ready"]
            exposition = (await world.client.get("/metrics")).text
            return num_ready, f"online_agent_queue_ready {float(num_ready)}" in exposition

        assert await ready() == (0, True)
        world.runner.finish(group["episode_ids"][2])
        assert await ready() == (3, True)
