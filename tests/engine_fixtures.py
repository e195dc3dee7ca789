"""The real SGLang server, started once for all tests that name ``real_engine``, and the models it can serve."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import SecretStr

from online_agent.config.serving import EngineSettings
from online_agent.serving.client import EngineClient
from online_agent.serving.launcher import EngineProcess
from online_agent.serving.readiness import wait_ready
from tests.fakes.tiny_model import CONTEXT_LENGTH, VOCAB_SIZE, write_tiny_model

START_TIMEOUT_S = 300.0
"""15 to 35 s where the cores are free; tests of others may share them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whichever test comes first pays for the start of the server, within its own deadline."""
    for item in items:
        if item.get_closest_marker("engine") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(START_TIMEOUT_S + 120))


@dataclass(frozen=True)
class RealEngine:
    """A running server that serves ``model_dirs[1]`` as version 1 before each test."""

    settings: EngineSettings
    model_dirs: dict[int, Path]
    process: EngineProcess

    @property
    def url(self) -> str:
        return self.process.url

    def client(self) -> EngineClient:
        return client_of(self.url, self.settings)


def client_of(url: str, settings: EngineSettings) -> EngineClient:
    key = settings.api_key.get_secret_value()
    return EngineClient(url, key, 60.0, vocab_size=VOCAB_SIZE, context_length=settings.context_length)


@pytest.fixture(scope="session")
def engine_settings() -> EngineSettings:
    """What a server for the tiny models is started with."""
    key = SecretStr(secrets.token_hex(16))
    return EngineSettings(api_key=key, max_total_tokens=16384, context_length=CONTEXT_LENGTH)


@pytest.fixture(scope="session")
def model_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Three random models of one shape, by the version they are served under."""
    root = tmp_path_factory.mktemp("models")
    return {version: write_tiny_model(root / f"v{version}", seed=version) for version in (1, 2, 3)}


@pytest.fixture(scope="session")
def real_engine_process(
    engine_settings: EngineSettings, model_dirs: dict[int, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealEngine]:
    run_dir = tmp_path_factory.mktemp("engine")
    process = EngineProcess(engine_settings, model_dirs[1], 1, port=free_port(), run_dir=run_dir)
    engine = RealEngine(engine_settings, model_dirs, process)
    process.start()
    try:
        asyncio.run(_wait(engine))
        yield engine
    finally:
        process.stop()


@pytest.fixture
async def real_engine(real_engine_process: RealEngine) -> AsyncIterator[RealEngine]:
    yield real_engine_process
    await serve_first_version(real_engine_process)


async def serve_first_version(engine: RealEngine) -> None:
    """Whatever a test left behind (a pause, other weights), the next one starts from version 1."""
    async with engine.client() as client:
        await client.pause()
        await client.update_weights(engine.model_dirs[1], 1)
        await client.resume()


async def _wait(engine: RealEngine) -> None:
    async with engine.client() as client:
        await wait_ready(client, engine.process, engine.model_dirs[1], START_TIMEOUT_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
