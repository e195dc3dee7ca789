"""When a server may take traffic, and when it counts as dead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from online_agent.errors import EngineError, EngineUnavailable, SwapFailed
from online_agent.serving.adapter_client import AdapterClient
from online_agent.serving.adapter_swap import check_adapter
from online_agent.serving.checksums import verify_checksums
from online_agent.serving.client import EngineClient
from online_agent.serving.launcher import EngineProcess
from online_agent.weights.adapter import base_serving_dir, is_adapter

POLL_S = 0.25


async def wait_ready(client: EngineClient, process: EngineProcess, serving_dir: Path, timeout_s: float) -> None:
    """The server generates, and serves the bytes of ``serving_dir`` under the version it was started with.

    Raises EngineUnavailable with the end of the server's log when it dies or needs longer, SwapFailed when it serves
    something else: such a server must not get traffic.
    """
    try:
        async with asyncio.timeout(timeout_s):
            await _until_healthy(client, process)
    except TimeoutError as error:
        raise EngineUnavailable(f"not ready after {timeout_s:.0f} s; its log ends: {process.log_tail()}") from error
    await verify_served(client, serving_dir, process.version)


async def verify_served(client: EngineClient, serving_dir: Path, version: int) -> None:
    """The server reports ``version`` and holds exactly the directory's bytes. Raises SwapFailed where it does not.

    Of a version with an adapter: the bytes of its base, and an adapter that answers its probe.
    """
    info = await client.model_info()
    if info.weight_version != version:
        raise SwapFailed(f"{client.base_url} serves version {info.weight_version}, not {version}")
    actual = await client.checksums()
    await asyncio.to_thread(verify_checksums, base_serving_dir(serving_dir), actual)
    if is_adapter(serving_dir):
        if not isinstance(client, AdapterClient):
            raise SwapFailed(f"version {version} is an adapter: learner.actor is not 'lora'")
        await check_adapter(client, serving_dir, version)


async def _until_healthy(client: EngineClient, process: EngineProcess) -> None:
    while not await _answers(client) or not await client.is_healthy():
        if not process.is_running:
            raise EngineUnavailable(
                f"the engine process exited with code {process.exit_code}; its log ends: {process.log_tail()}"
            )
        await asyncio.sleep(POLL_S)


async def _answers(client: EngineClient) -> bool:
    try:
        await client.model_info()
    except EngineError:
        return False
    return True


class HealthWatch:
    """Tells a long pause from death: health is refused while weights are swapped, but a swap has a deadline.

    ``grace_s`` must be longer than the longest pause (the swap's deadline, twice when it has to load the last good
    version again).
    """

    def __init__(self, client: EngineClient, grace_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._grace_s, self._clock = client, grace_s, clock
        self._last_healthy_at = clock()

    async def is_alive(self) -> bool:
        """False once the server has not generated for ``grace_s``."""
        if await self._client.is_healthy():
            self._last_healthy_at = self._clock()
        return self._clock() - self._last_healthy_at < self._grace_s
