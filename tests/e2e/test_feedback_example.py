"""The example, run as its reader runs it: a real service, the OpenAI library, feedback, new versions."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import httpx
import pytest

from online_agent.demo.service import Service, running_service

EXAMPLE = Path(__file__).parents[2] / "examples" / "learn_from_feedback.py"
NUM_ROUNDS, SIZE = 6, 8
SMALL_STEPS = {"ONLINE_AGENT_LEARNER__BATCH_EPISODES": str(SIZE)}

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(400)]


async def run_example(service: Service) -> str:
    told = {"OPENAI_BASE_URL": f"{service.url}/v1", "OPENAI_API_KEY": service.key, "NO_PROXY": "127.0.0.1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), str(NUM_ROUNDS), str(SIZE), env=os.environ | told,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_the_example_sees_the_version_rise_by_its_own_feedback(tmp_path: Path) -> None:
    async with running_service(tmp_path / "service", SMALL_STEPS) as service:
        printed = await run_example(service)
        headers = {"Authorization": f"Bearer {service.key}"}
        async with httpx.AsyncClient(base_url=service.url, headers=headers, trust_env=False) as client:
            fates = (await client.get("/v1/episodes/example-train-0/feedback")).json()["data"]
            episode = (await client.get("/v1/episodes/example-train-0")).json()
    versions = [int(number) for number in re.findall(rf"version (\d+): \d+ of {SIZE} repaired", printed)]
    assert len(versions) == NUM_ROUNDS, printed
    assert versions[0] == 0
    assert versions[-1] >= 1
    assert versions == sorted(versions)
    assert [(fate["source"], fate["fate"]) for fate in fates] == [("ci", "used")]
    assert episode["status"] == "trained"


def test_the_example_is_as_short_as_it_says() -> None:
    lines = EXAMPLE.read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 30
