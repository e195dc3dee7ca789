"""The engine process: starts SGLang on the serving version, and ends when SGLang ends or stops answering.

Invariant: the server is started on the weights that serve now, under their version, and is announced as ready only
after it was seen to hold exactly them. So a restart never answers with the weights it was once launched with.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from pathlib import Path
from urllib.parse import urlsplit

from online_agent.config.environment import settings_of_environment
from online_agent.config.settings import Settings
from online_agent.errors import ConfigError, EngineUnavailable
from online_agent.promotion.states import serving_version
from online_agent.serving.client import EngineClient
from online_agent.serving.connect import connect
from online_agent.serving.launcher import EngineProcess
from online_agent.serving.readiness import HealthWatch, wait_ready
from online_agent.store.session import Database
from online_agent.supervisor.readiness import announce_ready
from online_agent.telemetry.logging import get_logger, setup_logging
from online_agent.weights.store import WeightStore

_log = get_logger(__name__)
_EXIT_POLL_S = 0.5
_HEALTH_EVERY_S = 15.0
# Whoever stops the engine has drained it first, and SGLang spends most of its own shutdown in a fixed sleep.
_STOP_GRACE_S = 3.0
# A swap may pause the server for its timeout, and once more to restore the last good version; an interruption for the
# learner may come before it.
_GRACE_IN_SWAPS = 3


def main() -> None:
    """Run the server until SIGTERM. Raises EngineUnavailable when it ends by itself: the supervisor starts it again."""
    settings = settings_of_environment()
    setup_logging("engine", settings)
    asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    db = Database(settings.database_url, settings.database.busy_timeout_s)
    version = serving_version(db).version
    serving_dir = _serving_dir(WeightStore(settings.weights_dir), version)
    port, run_dir, adapter = _port(settings.engine.url), settings.data_dir / "engine", settings.learner.adapter
    process = EngineProcess(settings.engine, serving_dir, version, port=port, run_dir=run_dir, lora=adapter)
    process.start()
    try:
        async with connect(settings) as client:
            ready = asyncio.create_task(wait_ready(client, process, serving_dir, settings.engine.start_timeout_s))
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait({ready, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if stop.is_set():
                ready.cancel()
                return
            stopped.cancel()
            await ready
            _record_start(db, process, version)
            announce_ready(settings, "engine")
            await _watch(client, process, settings, stop)
    finally:
        process.stop(_STOP_GRACE_S)
        db.close()


def _serving_dir(weights: WeightStore, version: int) -> Path:
    """Of the verified version; an adapter's base is verified with it. Raises WeightsError."""
    version_dir = weights.open(version)
    weights.open_base(version_dir)
    return version_dir.serving_dir


async def _watch(client: EngineClient, process: EngineProcess, settings: Settings, stop: asyncio.Event) -> None:
    """Return when asked to stop. Raises EngineUnavailable when the server is gone or has not generated for too long."""
    grace_s = _GRACE_IN_SWAPS * settings.engine.swap_timeout_s + settings.old_logits.max_pause_s
    watch = HealthWatch(client, grace_s)
    check_at = time.monotonic() + _HEALTH_EVERY_S
    while not stop.is_set():
        if not process.is_running:
            raise EngineUnavailable(f"the engine exited with code {process.exit_code}: {process.log_tail()}")
        if time.monotonic() >= check_at:
            check_at = time.monotonic() + _HEALTH_EVERY_S
            if not await watch.is_alive():
                raise EngineUnavailable("the engine runs but no longer generates")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _EXIT_POLL_S)


def _record_start(db: Database, process: EngineProcess, version: int) -> None:
    incarnation = secrets.token_hex(8)
    with db.transaction() as tx:
        tx.processes.beat("engine", process.pid or os.getpid(), incarnation, {"version": version, "url": process.url})
        tx.events.add("engine_started", {"version": version, "incarnation": incarnation}, version=version)
    _log.info("engine ready", version=version, incarnation=incarnation)


def _port(url: str) -> int:
    port = urlsplit(url).port
    if port is None:
        raise ConfigError(f"engine.url {url!r} names no port: the engine process needs to know where to listen")
    return port
