"""The example, run as its reader runs it: a real service, the OpenAI library, feedback, new versions.

The same service then gets a task of our own.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from online_agent.demo.service import Service, running_service

EXAMPLE = Path(__file__).parents[2] / "examples" / "learn_from_feedback.py"
NUM_ROUNDS, SIZE = 6, 8
SMALL_STEPS = {"ONLINE_AGENT_LEARNER__BATCH_EPISODES": str(SIZE)}
GIVEN = {
    "prompt": "fix src/own.py: least(2, 5) is 5, want 2",
    "files": {"src/own.py": "def least(a, b):\n    return max(a, b)\n"},
    "tests": {
        "path": "src/own.py",
        "cases": [{"call": "least(2, 5)", "want": "2"}, {"call": "least(3, 3)", "want": "3"}],
    },
}

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(500)]


async def run_example(service: Service, num_rounds: int = NUM_ROUNDS, size: int = SIZE) -> str:
    told = {"OPENAI_BASE_URL": f"{service.url}/v1", "OPENAI_API_KEY": service.key, "NO_PROXY": "127.0.0.1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), str(num_rounds), str(size), env=os.environ | told,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


@dataclass(frozen=True)
class Seen:
    """``printed`` by the example; ``fates`` of the feedback and ``episode`` of its first task; ``waiting``: feedback
    that is held back; ``given``: a group; ``again``: what a second run on the same tasks printed.
    """

    printed: str
    fates: list[dict[str, Any]]
    episode: dict[str, Any]
    waiting: list[dict[str, Any]]
    given: list[dict[str, Any]]
    again: str


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    return asyncio.run(_run(tmp_path_factory.mktemp("example") / "service"))


async def _run(directory: Path) -> Seen:
    async with running_service(directory, SMALL_STEPS) as service:
        printed = await run_example(service)
        headers = {"Authorization": f"Bearer {service.key}"}
        async with httpx.AsyncClient(base_url=service.url, headers=headers, trust_env=False, timeout=120) as client:
            oldest = (await client.get("/v1/episodes", params={"env": "client", "limit": 100})).json()["data"][-1]["id"]
            fates = (await client.get(f"/v1/episodes/{oldest}/feedback")).json()["data"]
            episode = (await client.get(f"/v1/episodes/{oldest}")).json()
            waiting = (await client.get("/v1/feedback")).json()["data"]
            given = await _trained_on_given_task(client)
        return Seen(printed, fates, episode, waiting, given, await run_example(service, 1, 2))


async def _trained_on_given_task(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    """A group of one batch on a task of our own, as it stands once the learner had all of it, or after a minute."""
    body = {"env": "bug_repair", "task": GIVEN, "group_size": SIZE}
    created = (await client.post("/v1/episodes", params={"wait": "true"}, json=body)).json()
    for _ in range(120):
        listed: list[dict[str, Any]] = (
            await client.get("/v1/episodes", params={"group_id": created["group_id"]})
        ).json()["data"]
        if {row["status"] for row in listed} == {"trained"}:
            break
        await asyncio.sleep(0.5)
    return listed


def test_the_example_sees_the_version_rise_by_its_own_feedback(seen: Seen) -> None:
    versions = [int(number) for number in re.findall(rf"version (\d+): \d+ of {SIZE} repaired", seen.printed)]
    assert len(versions) == NUM_ROUNDS, seen.printed
    assert versions[0] == 0
    assert versions[-1] >= 1
    assert versions == sorted(versions)
    assert [(fate["source"], fate["fate"]) for fate in seen.fates] == [("ci", "used")]
    assert seen.episode["status"] == "trained"
    assert seen.waiting == [], "a client's tests are trusted, whether they pass first or fail first"


def test_a_second_run_on_the_same_tasks_has_episodes_of_its_own(seen: Seen) -> None:
    assert re.fullmatch(r"version \d+: [012] of 2 repaired\n", seen.again)


def test_a_task_that_came_with_its_request_is_graded_and_trained_on(seen: Seen) -> None:
    assert [row["status"] for row in seen.given] == ["trained"] * SIZE
    assert len({row["task_id"] for row in seen.given}) == 1
    assert {row["verdict"]["reward"] for row in seen.given} <= {0.0, 1.0}
    assert {row["verdict"]["evidence"].get("num_cases", 2) for row in seen.given} == {2}


def test_the_example_is_as_short_as_it_says() -> None:
    lines = EXAMPLE.read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 31
