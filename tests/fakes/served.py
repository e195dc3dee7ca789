"""The application on a port of this machine, for tests that are not async."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from online_agent.config.serving import ApiSettings
from tests.fakes.api import on_a_port
from tests.fakes.gateway import open_desk
from tests.fakes.tiny_model import write_tiny_model


@dataclass(frozen=True)
class Served:
    url: str
    headers: dict[str, str]


@contextmanager
def serve_in_thread(data_dir: Path) -> Iterator[Served]:
    """The application on a port for tests that are not async. Waits end after a tenth of a second."""
    is_up, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()
    found: list[Served] = []

    async def serve() -> None:
        model_dir = write_tiny_model(data_dir / "model")
        async with (
            open_desk(data_dir, model_dir, api=ApiSettings(held_timeout_s=0.1)) as desk,
            on_a_port(desk.world) as client,
        ):
            found.append(Served(str(client.base_url), desk.world.headers("all")))
            is_up.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert is_up.wait(30)
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()
