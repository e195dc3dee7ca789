"""Moves a running engine to other weights under traffic, or puts it back.

    check files → pause (retract) → load → compare checksums → resume

Invariants
- Files are checked before the engine hears of them: it accepts missing and misshapen tensors, and a truncated file
  kills it.
- Between pause and resume no token is sampled, so no token is ever made by unverified weights.
- Whatever goes wrong after the pause, the last good version is loaded and verified again before the engine resumes. An
  engine that cannot be put back stays paused, and EngineLost says to restart it.

An engine whose policy is a base with adapters is not paused at all: see ``adapter_swap``.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from online_agent.errors import EngineError, EngineLost, EngineRejected, ForeignVersion, SwapFailed, reason_of
from online_agent.serving.adapter_client import AdapterClient
from online_agent.serving.adapter_swap import restore_adapter, switch_adapter
from online_agent.serving.client import EngineClient, EngineLoads
from online_agent.serving.readiness import verify_served
from online_agent.weights.fit import check_fits
from online_agent.weights.version_dir import VersionDir

FLUSH_RETRY_S = 0.05
NOT_FLUSHED = "cache was not flushed"
"""In the one refusal after which the weights are the new ones all the same."""


@dataclass(frozen=True, slots=True)
class SwapReport:
    """``paused_s``: how long nothing was sampled. The requests running at the pause were recomputed, not lost."""

    version: int
    previous_version: int
    seconds: float
    paused_s: float
    num_running_at_pause: int
    num_waiting_at_pause: int


async def swap(client: EngineClient, target: VersionDir, *, last_good: VersionDir, timeout_s: float) -> SwapReport:
    """The engine serves ``target``, verified byte for byte; requests under way go on and carry exact version runs.

    Raises CorruptVersion or ForeignVersion before the engine is touched; SwapFailed when ``last_good`` serves
    again; EngineLost when it does not. ``timeout_s`` bounds the pause; restoring takes at most as long again.
    """
    started_at = time.monotonic()
    await asyncio.to_thread(check_fits, target, last_good.manifest)
    if isinstance(client, AdapterClient):
        await switch_adapter(client, target, last_good, timeout_s)
        return _report(target, last_good, started_at, time.monotonic(), EngineLoads(0, 0))
    if target.manifest.base is not None:
        raise ForeignVersion(f"version {target.manifest.version} is an adapter: learner.actor is not 'lora'")
    loads = await client.loads()
    paused_at = time.monotonic()
    try:
        async with asyncio.timeout(timeout_s):
            await _load_paused(client, target, timeout_s)
    except (EngineError, SwapFailed, TimeoutError, asyncio.CancelledError) as error:
        await asyncio.shield(_restore_after(client, last_good, timeout_s, error))
        if isinstance(error, asyncio.CancelledError):
            raise
        kept = last_good.manifest.version
        raise SwapFailed(
            f"version {target.manifest.version} was not taken ({reason_of(error)}); version {kept} serves"
        ) from error
    return _report(target, last_good, started_at, paused_at, loads)


async def restore(client: EngineClient, version_dir: VersionDir, *, timeout_s: float) -> None:
    """The engine serves ``version_dir``, verified, whatever state it was in (paused, half loaded, another version).

    Raises EngineLost when it cannot be brought there.
    """
    if isinstance(client, AdapterClient):
        return await restore_adapter(client, version_dir.serving_dir, version_dir.manifest.version, timeout_s)
    try:
        async with asyncio.timeout(timeout_s):
            await _load_paused(client, version_dir, timeout_s)
    except (EngineError, SwapFailed, TimeoutError) as error:
        raise EngineLost(f"version {version_dir.manifest.version} could not be restored: {reason_of(error)}") from error


async def _load_paused(client: EngineClient, version_dir: VersionDir, timeout_s: float) -> None:
    await client.pause("retract")
    await _load(client, version_dir, timeout_s)
    await verify_served(client, version_dir.serving_dir, version_dir.manifest.version)
    await client.resume()


async def _load(client: EngineClient, version_dir: VersionDir, timeout_s: float) -> None:
    """Loads with an empty prefix cache; where the engine kept it, empties it and loads again, so that labels agree."""
    while True:
        try:
            return await client.update_weights(version_dir.serving_dir, version_dir.manifest.version, timeout_s)
        except EngineRejected as error:
            if NOT_FLUSHED not in error.message:
                raise
        while True:
            if await client.flush_cache():
                break
            await asyncio.sleep(FLUSH_RETRY_S)


async def _restore_after(client: EngineClient, last_good: VersionDir, timeout_s: float, cause: BaseException) -> None:
    try:
        await restore(client, last_good, timeout_s=timeout_s)
    except EngineLost as error:
        raise EngineLost(f"{error.message}; it followed {reason_of(cause)}") from cause


def _report(
    target: VersionDir, last_good: VersionDir, started_at: float, paused_at: float, loads: EngineLoads
) -> SwapReport:
    now = time.monotonic()
    return SwapReport(
        version=target.manifest.version,
        previous_version=last_good.manifest.version,
        seconds=now - started_at,
        paused_s=now - paused_at,
        num_running_at_pause=loads.num_running,
        num_waiting_at_pause=loads.num_waiting,
    )
