"""Tasks given with a request: worked on and kept without secrets, grouped by content, erased with their episode."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from envs.tasks.bug_repair.given import parse_repair
from online_agent.config.serving import AgentSettings
from tests.fakes.api import TENANT, World, on_a_port, open_world
from tests.fakes.secrets import SECRETS

TASK: dict[str, Any] = {"prompt": "x should be 2", "files": {"a.py": "x = 1\n", "docs/b.md": "on x\n"}}
KEY = SECRETS["aws_key"]


async def refusal(world: World, **body: Any) -> tuple[int, str, str]:
    answer = await world.client.post("/v1/episodes", json={"env": "add_one", **body})
    error = answer.json()["error"]
    assert world.runner.started == []
    return answer.status_code, error["param"], error["message"]


async def task_of(world: World, episode_id: str) -> Any:
    return (await world.client.get(f"/v1/episodes/{episode_id}?include=task")).json()["task"]


async def test_a_given_task_is_run_graded_and_kept_with_what_grades_it(world: World) -> None:
    episode = await world.episode(task=TASK)
    assert (episode["status"], episode["split"]) == ("graded", "train")
    assert episode["task_id"].startswith("inline-")
    (request,) = world.runner.started
    assert request.task is not None
    assert (request.task.prompt, request.task.files) == (TASK["prompt"], TASK["files"])
    assert await task_of(world, episode["id"]) == {**TASK, "data": {"tests": "assert x == 2"}}


async def test_the_task_is_shown_on_demand_and_only_where_one_was_given(world: World) -> None:
    given, own = await world.episode(task=TASK), await world.episode()
    assert (await world.client.get(f"/v1/episodes/{given['id']}")).json()["task"] is None
    assert await task_of(world, own["id"]) is None


async def test_equal_tasks_have_one_id_and_others_their_own(world: World) -> None:
    turned = {"files": dict(reversed(TASK["files"].items())), "prompt": TASK["prompt"]}
    ids = [(await world.episode(task=task))["task_id"] for task in (TASK, turned, {**TASK, "prompt": "x = 2!"})]
    assert ids[0] == ids[1] != ids[2]


@pytest.mark.parametrize("other", [{"task_id": "train-1"}, {"split": "heldout"}, {"split": "train"}])
async def test_a_request_that_gives_a_task_names_no_other(world: World, other: dict[str, str]) -> None:
    (field,) = other
    assert await refusal(world, task=TASK, **other) == (400, field, f"{field}: give either task or {field}, not both")


@pytest.mark.parametrize(
    ("task", "param", "said"),
    [
        ({"prompt": "p"}, "task.files", "Field required"),
        ({**TASK, "prompt": " "}, "task.prompt", "the prompt is empty"),
        ({**TASK, "files": {"../a.py": ""}}, "task.files", "'../a.py'"),
        ({**TASK, "files": {"/a.py": ""}}, "task.files", "'/a.py'"),
        ({**TASK, "files": {"a.py": 1}}, "task.files.a.py", "valid string"),
        ({**TASK, "files": ["a.py"]}, "task.files", "valid dictionary"),
        ({**TASK, "files": {f"{n}.py": "" for n in range(65)}}, "task.files", "at most 64"),
        ({**TASK, "rubric": "be kind"}, "task.rubric", "not permitted"),
        ({}, "task.prompt", "Field required"),
        ("fix it", "task", "valid dictionary"),
        ({**TASK, "files": {"a\x00.py": ""}}, None, "NUL"),
    ],
)
async def test_what_cannot_be_used_is_refused_by_name(world: World, task: Any, param: str | None, said: str) -> None:
    status, named, message = await refusal(world, task=task)
    assert (status, named, said in message) == (400, param, True), message


async def test_the_environments_say_what_a_task_of_theirs_looks_like(world: World) -> None:
    (env,) = (await world.client.get("/v1/envs")).json()["data"]
    assert env["task_schema"]["required"] == ["prompt", "files"]


async def test_the_task_in_the_document_is_one_that_bug_repair_takes(world: World) -> None:
    document = (await world.client.get("/openapi.json")).json()
    [body] = [e for e in document["components"]["schemas"]["EpisodeCreate"]["examples"] if "task" in e]
    assert parse_repair(body["env"], body["task"]).split == "train"


async def test_an_unknown_environment_is_told_before_its_task_is_read(world: World) -> None:
    status, param, _ = await refusal(world, env="nope", task={})
    assert (status, param) == (404, "env")


async def test_secrets_are_gone_before_the_agent_the_grader_or_the_store_has_the_task(world: World) -> None:
    files = {"a.py": f"key = '{KEY}'\n", f"{KEY}.txt": ""}
    episode = await world.episode(task={"prompt": f"use {KEY}", "files": files})
    (request,) = world.runner.started
    assert KEY not in repr(request)
    mask = "[redacted:aws_key]"
    kept = {"prompt": f"use {mask}", "files": {"a.py": f"key = '{mask}'\n", f"{mask}.txt": ""}}
    assert await task_of(world, episode["id"]) == {**kept, "data": {"tests": "assert x == 2"}}
    assert (await world.episode(task=kept))["task_id"] == episode["task_id"], "the id is that of what is kept"


async def test_paths_that_only_a_secret_tells_apart_are_refused(world: World) -> None:
    other = KEY[:-1] + ("A" if KEY[-1] != "A" else "B")
    _, param, message = await refusal(world, task={"prompt": "p", "files": {KEY: "", other: ""}})
    assert param == "task.files"
    assert "two paths are the same" in message
    assert KEY not in message


async def test_a_refusal_quotes_no_secret(world: World) -> None:
    _, _, message = await refusal(world, task={"prompt": "p", "files": {f"/{KEY}": ""}})
    assert KEY not in message
    assert "[redacted:aws_key]" in message


async def test_a_group_works_on_one_given_task(world: World) -> None:
    group = await world.episode(task=TASK, group_size=3)
    assert len(group["members"]) == 3
    assert {member["task_id"] for member in group["members"]} == {group["task_id"]}
    assert [await task_of(world, episode_id) for episode_id in group["episode_ids"]] == [
        await task_of(world, group["id"])
    ] * 3


async def test_the_setting_for_groups_holds_for_given_tasks(tmp_path: Path) -> None:
    async with open_world(tmp_path, agent=AgentSettings(group_size=2)) as grouping:
        assert (await grouping.episode(task=TASK))["group_size"] == 2


async def test_a_repeat_joins_the_first_request_and_another_task_is_a_conflict(world: World) -> None:
    async def post(task: dict[str, Any]) -> Any:
        body, headers = {"env": "add_one", "task": task}, {"Idempotency-Key": "k"}
        return await world.client.post("/v1/episodes", json=body, headers=headers)

    first, twin = await asyncio.gather(post(TASK), post(TASK))
    assert first.json() == twin.json()
    assert len(world.runner.started) == 1
    assert (await post({**TASK, "prompt": "other"})).status_code == 409


async def test_a_given_task_is_streamed_like_any_other(world: World) -> None:
    async with on_a_port(world) as client:
        headers = {"Accept": "text/event-stream"}
        answer = await client.post("/v1/episodes", json={"env": "add_one", "task": TASK}, headers=headers)
    kinds = [line.removeprefix("event: ") for line in answer.text.splitlines() if line.startswith("event: ")]
    assert kinds == ["turn", "tool_call", "observation", "verdict", "done"]


def is_stored(world: World, text: str) -> bool:
    with closing(sqlite3.connect(world.runtime.settings.data_dir / "online_agent.db")) as db:
        return any(text in line for line in db.iterdump())


async def test_erasing_an_episode_a_person_or_what_is_old_takes_the_given_task_along(world: World) -> None:
    erased, persons, old = [await world.episode(task=TASK, metadata={"person": who}) for who in ("bo", "ann", "bo")]
    assert (await world.client.delete(f"/v1/episodes/{erased['id']}")).status_code == 204
    assert (await world.client.delete("/v1/people/ann")).json()["num_episodes"] == 1
    assert is_stored(world, TASK["prompt"])
    with world.db.transaction() as tx:
        assert tx.expiry.erase(tx.expiry.ended(TENANT, old["finished_at"] + 1, 10)) == 1
    for episode in (erased, persons, old):
        assert (await world.client.get(f"/v1/episodes/{episode['id']}?include=task")).status_code == 404
    assert not is_stored(world, TASK["prompt"])


async def test_another_tenant_reads_neither_the_episode_nor_its_task(world: World) -> None:
    episode = await world.episode(task=TASK)
    answer = await world.client.get(f"/v1/episodes/{episode['id']}?include=task", headers=world.headers("other"))
    assert answer.status_code == 404


async def test_an_export_holds_the_episode_under_the_id_of_its_task(world: World) -> None:
    episode = await world.episode(task=TASK)
    rows = await world.client.get("/v1/episodes/export?shape=native&format=jsonl")
    assert rows.status_code == 200, rows.text
    assert f'"task_id":"{episode["task_id"]}"' in rows.text
