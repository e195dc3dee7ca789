"""One real SGLang server for all runs of a bench, put back to the seed policy before each.

Versions start at 0 in every run, so a label alone does not say what the engine holds. ``hold_seed`` therefore pauses,
loads the seed with an emptied prefix cache, compares the checksum of every tensor and only then lets it generate.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import SecretStr

from online_agent.config.serving import EngineSettings
from online_agent.serving.client import EngineClient
from online_agent.serving.launcher import EngineProcess
from online_agent.serving.readiness import wait_ready
from online_agent.serving.swap import restore
from online_agent.supervisor.plan import free_port
from online_agent.weights.version_dir import VersionDir

SEED_VERSION = 0
START_TIMEOUT_S = 600.0  # a bench of hours does not give up because the machine was busy for a moment


class SharedEngine:
    """A running server; ``environment`` is what a service needs to use it in place of its own."""

    def __init__(self, process: EngineProcess, client: EngineClient, settings: EngineSettings) -> None:
        self._process, self._client, self._settings = process, client, settings

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    @property
    def environment(self) -> dict[str, str]:
        return {
            "ONLINE_AGENT_ENGINE__URL": self._process.url,
            "ONLINE_AGENT_ENGINE__API_KEY": self._settings.api_key.get_secret_value(),
        }

    async def hold_seed(self, seed: VersionDir) -> float:
        """The engine serves exactly the seed, verified, with an empty cache. Returns seconds; raises EngineLost."""
        started = time.monotonic()
        await restore(self._client, seed, timeout_s=self._settings.swap_timeout_s)
        return time.monotonic() - started


@asynccontextmanager
async def running_engine(
    model_dir: Path, run_dir: Path, extra_args: tuple[str, ...] = ()
) -> AsyncIterator[SharedEngine]:
    """A server that answers inside the block. Raises EngineUnavailable with the end of its log."""
    settings = EngineSettings(
        api_key=SecretStr(secrets.token_urlsafe(32)), extra_args=extra_args, start_timeout_s=START_TIMEOUT_S
    )
    process = EngineProcess(settings, model_dir, SEED_VERSION, port=free_port(), run_dir=run_dir)
    process.start()
    try:
        async with EngineClient(process.url, settings.api_key.get_secret_value()) as client:
            await wait_ready(client, process, model_dir, settings.start_timeout_s)
            yield SharedEngine(process, client, settings)
    finally:
        process.stop()
