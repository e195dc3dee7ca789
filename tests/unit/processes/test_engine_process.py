"""The engine process: what it starts its server on, when it says that it is ready, and that it ends with its server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from online_agent.config.serving import EngineSettings
from online_agent.config.settings import Settings
from online_agent.config.training import LearnerSettings, LoraSettings
from online_agent.errors import CorruptVersion, EngineUnavailable, SwapFailed
from online_agent.processes import engine
from online_agent.store.records import VersionNew
from online_agent.store.session import Database
from online_agent.supervisor.readiness import has_announced
from online_agent.types import VersionOrigin, VersionState
from online_agent.weights.adapter import adapter_name, base_serving_dir, is_adapter
from online_agent.weights.store import WeightStore
from tests.engine_fixtures import free_port
from tests.fakes.adapter_engine import ScriptedAdapterEngine
from tests.fakes.adapters import publish_adapter
from tests.fakes.engine import ScriptedEngine
from tests.waiting import until


class ScriptedServer:
    """Stands in for EngineProcess: the scripted engine in a thread, on the directory and version it was given."""

    def __init__(self, serving_dir: Path, version: int, port: int) -> None:
        self.serving_dir, self.version, self._port = serving_dir, version, port
        self.url, self.pid = f"http://127.0.0.1:{port}", os.getpid()
        self.exit_code: int | None = None
        self._held = ExitStack()

    @property
    def is_running(self) -> bool:
        return self.exit_code is None

    def start(self) -> None:
        if is_adapter(self.serving_dir):
            adapted = ScriptedAdapterEngine(base_serving_dir(self.serving_dir), self.version)
            adapted.hold(adapter_name(self.version), self.serving_dir)
            self._held.enter_context(adapted.running_in_thread(self._port))
        else:
            self._held.enter_context(ScriptedEngine(self.serving_dir, self.version).running_in_thread(self._port))

    def stop(self, grace_s: float) -> None:
        self._held.close()

    def log_tail(self) -> str:
        return "out of memory"


class Machine:
    """A data directory with versions, and the servers that the engine process started there."""

    def __init__(self, data_dir: Path, model_dirs: dict[int, Path]) -> None:
        url = f"http://127.0.0.1:{free_port()}"
        self.settings = Settings(data_dir=data_dir, engine=EngineSettings(url=url, start_timeout_s=20))
        self.db = Database(self.settings.database_url)
        self.weights = WeightStore(self.settings.weights_dir)
        self.model_dirs = model_dirs
        self.servers: list[ScriptedServer] = []
        self.holds: Path | None = None
        """What the next server really serves, if not the directory it was told."""

    def serve(self, version: int, model: int) -> Path:
        serving_dir = self.weights.import_seed(self.model_dirs[model], version).serving_dir
        with self.db.transaction() as tx:
            tx.weights.insert(VersionNew(version, VersionOrigin.SEED, state=VersionState.SERVING))
        return serving_dir

    def launch(
        self,
        _: EngineSettings,
        serving_dir: Path,
        version: int,
        *,
        port: int,
        run_dir: Path,
        lora: LoraSettings | None = None,
    ) -> ScriptedServer:
        self.servers.append(ScriptedServer(self.holds or serving_dir, version, port))
        return self.servers[-1]

    def starts(self) -> list[Any]:
        with self.db.reading() as tx:
            return [event.data["version"] for event in tx.events.list(["engine_started"])]

    async def live_and_be_killed(self) -> None:
        """One life of the process, until its server is killed."""
        life = asyncio.create_task(engine._run(self.settings))
        num_lives = len(self.starts()) + 1
        await until(lambda: life.done() or len(self.starts()) == num_lives, timeout_s=30)
        assert has_announced(self.settings.data_dir, "engine", os.getpid())
        self.servers[-1].exit_code = -9
        with pytest.raises(EngineUnavailable, match="exited with code -9: out of memory"):
            await life


@pytest.fixture
def machine(
    sqlite_url: str, tmp_path: Path, model_dirs: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Machine]:
    made = Machine(tmp_path, model_dirs)
    monkeypatch.setattr(engine, "EngineProcess", made.launch)
    yield made
    made.db.close()


async def test_c15_after_a_kill_the_server_starts_on_the_current_version_and_not_on_that_of_the_first_launch(
    machine: Machine,
) -> None:
    base = machine.serve(0, model=1)
    await machine.live_and_be_killed()
    current = machine.serve(12, model=2)
    await machine.live_and_be_killed()
    assert [(server.serving_dir, server.version) for server in machine.servers] == [(base, 0), (current, 12)]
    assert machine.starts() == [0, 12]


async def test_c15_a_server_that_holds_the_base_weights_under_the_current_label_is_never_announced(
    machine: Machine,
) -> None:
    machine.holds = machine.serve(0, model=1)
    machine.serve(12, model=2)
    with pytest.raises(SwapFailed, match="other values"):
        await engine._run(machine.settings)
    assert machine.starts() == []
    assert not has_announced(machine.settings.data_dir, "engine", os.getpid())


@pytest.fixture
def adapted(machine: Machine) -> Machine:
    """Version 0 was served and version 3, an adapter of it, is."""
    machine.settings = machine.settings.model_copy(update={"learner": LearnerSettings(actor="lora")})
    machine.serve(0, model=1)
    publish_adapter(machine.weights, 3)
    with machine.db.transaction() as tx:
        tx.weights.move(0, {VersionState.SERVING}, VersionState.RETIRED)
        tx.weights.insert(VersionNew(3, VersionOrigin.STEP, 0, state=VersionState.SERVING))
    return machine


async def test_a_server_of_an_adapter_is_announced_once_it_answers_the_probe_over_the_right_base(
    adapted: Machine,
) -> None:
    await adapted.live_and_be_killed()
    [server] = adapted.servers
    assert (server.serving_dir, server.version) == (adapted.weights.open(3).serving_dir, 3)


async def test_a_damaged_base_keeps_the_server_from_starting(adapted: Machine) -> None:
    weights = adapted.weights.open(0).serving_dir / "model.safetensors"
    weights.chmod(0o644)
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(CorruptVersion, match=r"model\.safetensors was changed after it was published"):
        await engine._run(adapted.settings)
    assert adapted.servers == []
