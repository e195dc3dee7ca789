"""Moves a running engine from one adapter to another under traffic. Nothing is paused and nothing is recomputed.

    check files → load beside the old one → ask the probe → switch the label → unload those before the old one

Invariants
- The base is never changed: it is what the server was started on, and an adapter of any other is refused.
- Until the label is switched every request is answered by the old adapter, so whatever goes wrong before leaves it
  serving.
- The adapter that served before stays: requests under way end on it, and a client that learns of the switch a moment
  later still finds it.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from online_agent.errors import EngineError, EngineLost, EngineRejected, EngineUnavailable, SwapFailed, reason_of
from online_agent.serving.adapter_client import AdapterClient
from online_agent.telemetry.logging import get_logger
from online_agent.weights.adapter import is_adapter, read_probe
from online_agent.weights.version_dir import VersionDir

UNLOAD_TIMEOUT_S = 5.0
PROBE_TOLERANCE = {"float32": 1e-3}
LOW_PRECISION_TOLERANCE = 0.1
"""Largest gap, in nats, between the learner's float32 and the engine's log-prob of one prompt token: float32 engines
show 1e-5; bfloat16 rounds each of the network's layers to three digits."""

_log = get_logger(__name__)


async def switch_adapter(client: AdapterClient, target: VersionDir, last_good: VersionDir, timeout_s: float) -> None:
    """Requests that start now are answered by ``target``, whose probe was as expected.

    Raises SwapFailed while ``last_good`` serves on, EngineLost when the engine stopped answering after it was told to
    load.
    """
    version, kept = target.manifest.version, last_good.manifest.version
    try:
        async with asyncio.timeout(timeout_s):
            await _hold(client, target.serving_dir, version)
            await client.set_version(version)
    except EngineUnavailable as error:
        raise EngineLost(f"the engine was lost while it loaded adapter {version}: {error}") from error
    except (EngineError, SwapFailed, TimeoutError) as error:
        await _take_back(client, version, kept, error)
        raise SwapFailed(f"version {version} was not taken ({reason_of(error)}); version {kept} serves") from error
    await _drop(client, await _older_than(client, min(version, kept)))


async def restore_adapter(client: AdapterClient, serving_dir: Path, version: int, timeout_s: float) -> None:
    """``version`` serves, whatever state the engine was in. Raises EngineLost when it cannot be brought there."""
    try:
        async with asyncio.timeout(timeout_s):
            await client.resume()
            await _hold(client, serving_dir, version)
            await client.set_version(version)
    except (EngineError, SwapFailed, TimeoutError) as error:
        raise EngineLost(f"version {version} could not be restored: {reason_of(error)}") from error


async def check_adapter(client: AdapterClient, serving_dir: Path, version: int) -> None:
    """The engine holds the adapter of this directory and answers its probe as the learner did.

    Raises SwapFailed with the largest gap. The probe also fails for an adapter that was loaded over another base, at
    another scale or onto other modules.
    """
    path = (await client.adapters()).get(version)
    if path != str(serving_dir):
        raise SwapFailed(f"{client.base_url} holds {path or 'no adapter'} as version {version}")
    probe = read_probe(serving_dir)
    logprobs = await client.prompt_logprobs(probe.token_ids, version)
    if len(logprobs) != len(probe.logprobs):
        raise SwapFailed(f"the probe of version {version} was answered with {len(logprobs)} log-probs")
    gaps = [
        abs(ours - theirs) if theirs is not None else float("inf")
        for ours, theirs in zip(probe.logprobs, logprobs, strict=True)
    ]
    tolerance = PROBE_TOLERANCE.get(await client.dtype(), LOW_PRECISION_TOLERANCE)
    if not max(gaps) <= tolerance:
        raise SwapFailed(f"the probe of version {version} is off by {max(gaps):.3g} nats, more than {tolerance}")


async def _take_back(client: AdapterClient, version: int, kept: int, cause: BaseException) -> None:
    """``kept`` serves, also when the label had been switched without an answer; only then is the adapter dropped."""
    try:
        await client.set_version(kept)
    except EngineError as error:
        raise EngineLost(f"version {kept} could not be named again: {error}; it followed {reason_of(cause)}") from cause
    await _drop(client, {version})


async def _hold(client: AdapterClient, serving_dir: Path, version: int) -> None:
    """The engine can answer as ``version``. Whole weights are the base, which it holds already."""
    if not is_adapter(serving_dir):
        return
    if version not in await client.adapters():
        await client.load_adapter(version, serving_dir)
    await check_adapter(client, serving_dir, version)


async def _older_than(client: AdapterClient, version: int) -> set[int]:
    try:
        return {held for held in await client.adapters() if held < version}
    except EngineError:
        return set()


async def _drop(client: AdapterClient, versions: set[int]) -> None:
    """Best effort: an adapter that stays takes memory and is dropped at the next switch."""
    for version in sorted(versions):
        try:
            await client.unload_adapter(version, UNLOAD_TIMEOUT_S)
        except EngineRejected:
            continue  # it was not loaded
        except EngineError as error:
            _log.warning("adapter not unloaded", version=version, reason=str(error))
