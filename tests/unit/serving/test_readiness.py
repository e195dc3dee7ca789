from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from online_agent.config.serving import EngineSettings
from online_agent.errors import EngineUnavailable, SwapFailed
from online_agent.serving import launcher
from online_agent.serving.client import EngineClient
from online_agent.serving.launcher import EngineCommand, EngineProcess
from online_agent.serving.readiness import HealthWatch, verify_served, wait_ready
from tests.database_fixtures import ManualClock
from tests.engine_fixtures import free_port
from tests.fakes.engine import ScriptedEngine


@pytest.fixture
async def engine(model_dirs: dict[int, Path]) -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(model_dirs[1], 1).running() as engine:
        yield engine


@pytest.fixture
async def client(engine: ScriptedEngine) -> AsyncIterator[EngineClient]:
    async with EngineClient(engine.url) as client:
        yield client


async def test_a_pause_is_not_death_until_it_outlasts_the_grace(client: EngineClient, clock: ManualClock) -> None:
    watch = HealthWatch(client, grace_s=60, clock=clock)
    assert await watch.is_alive()
    await client.pause()
    clock.advance(59)
    assert not await client.is_healthy()
    assert await watch.is_alive()
    await client.resume()
    assert await watch.is_alive()
    await client.pause()
    clock.advance(61)
    assert not await watch.is_alive()


async def test_c15_a_server_with_another_label_or_other_weights_gets_no_traffic(
    client: EngineClient, model_dirs: dict[int, Path]
) -> None:
    await verify_served(client, model_dirs[1], 1)
    with pytest.raises(SwapFailed, match="serves version 1, not 12"):
        await verify_served(client, model_dirs[1], 12)
    with pytest.raises(SwapFailed, match="other values"):
        await verify_served(client, model_dirs[2], 1)


async def test_a_server_that_dies_at_the_start_says_why(
    model_dirs: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        launcher, "engine_command", lambda *args: EngineCommand(("/bin/sh", "-c", "echo no such weights; exit 3"), {})
    )
    process = EngineProcess(EngineSettings(), model_dirs[1], 1, port=free_port(), run_dir=tmp_path)
    process.start()
    async with EngineClient(process.url) as client:
        with pytest.raises(EngineUnavailable, match=r"exited with code 3; its log ends: no such weights"):
            await wait_ready(client, process, model_dirs[1], 20)
    process.stop()


async def test_a_server_that_never_gets_ready_is_given_up(
    model_dirs: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "engine_command", lambda *args: EngineCommand(("/bin/sleep", "60"), {}))
    process = EngineProcess(EngineSettings(), model_dirs[1], 1, port=free_port(), run_dir=tmp_path)
    process.start()
    async with EngineClient(process.url) as client:
        with pytest.raises(EngineUnavailable, match="not ready after 1 s"):
            await wait_ready(client, process, model_dirs[1], 1)
    process.stop()
    assert not process.is_running
