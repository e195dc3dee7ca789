"""A database, a weights directory and a scripted engine that serves version 0."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from online_agent.promotion.lease import SwapLimits
from online_agent.serving.client import EngineClient
from online_agent.store.records import VersionNew, VersionRecord
from online_agent.store.session import Database
from online_agent.types import VersionOrigin, VersionState
from online_agent.weights.store import WeightStore
from tests.fakes.engine import ScriptedEngine
from tests.fakes.tenants import opt_in
from tests.fakes.tiny_model import tiny_weights, write_tiny_model

LIMITS = SwapLimits(swap_timeout_s=5.0, lease_s=30.0)


@dataclass
class World:
    db: Database
    weights: WeightStore
    fake: ScriptedEngine
    engine: EngineClient
    models: Path

    def write(self, version: int, *, seed: int | None = None, origin: VersionOrigin = VersionOrigin.STEP) -> None:
        """The version is on disk, with weights of its own."""
        with self.weights.writer(version, parent=version - 1, origin=origin) as directory:
            shutil.copytree(self.models / "base", directory / "serving", dirs_exist_ok=True)
            save_file(tiny_weights(version if seed is None else seed), directory / "serving" / "model.safetensors")
            save_file(tiny_weights(1000 + version), directory / "learner" / "critic.safetensors")
            (directory / "learner" / "state.json").write_text("{}")

    def commit(self, version: int) -> None:
        """As the learner does: the directory first, then the row, as a candidate."""
        self.write(version)
        with self.db.transaction() as tx:
            tx.weights.insert(VersionNew(version, VersionOrigin.STEP, parent=version - 1))

    def state(self, version: int) -> VersionState:
        return self.row(version).state

    def row(self, version: int) -> VersionRecord:
        with self.db.reading() as tx:
            return tx.weights.get(version)

    def serving(self) -> int | None:
        with self.db.reading() as tx:
            record = tx.weights.serving()
        return record.version if record else None

    def events(self, kind: str) -> list[dict[str, object]]:
        with self.db.reading() as tx:
            return [dict(event.data) for event in tx.events.list([kind])]

    def put(self, version: int, *path: VersionState) -> None:
        """Move a version along, as a swapper that was killed then left it."""
        with self.db.transaction() as tx:
            for state in path:
                assert tx.weights.move(version, {tx.weights.get(version).state}, state)


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "base", seed=0)


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("database") / "empty.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    opt_in(database)
    database.close()
    return path


@pytest.fixture
def db(tmp_path: Path, migrated: Path) -> Iterator[Database]:
    shutil.copyfile(migrated, tmp_path / "test.db")
    database = Database(f"sqlite:///{tmp_path / 'test.db'}", busy_timeout_s=5.0)
    yield database
    database.close()


@pytest.fixture
async def world(tmp_path: Path, db: Database, base_model: Path) -> AsyncIterator[World]:
    weights = WeightStore(tmp_path / "weights")
    seed = weights.import_seed(base_model, 0)
    with db.transaction() as tx:
        tx.weights.insert(
            VersionNew(0, VersionOrigin.SEED, content_hash=seed.manifest.content_hash, state=VersionState.SERVING)
        )
    fake = ScriptedEngine(seed.serving_dir, version=0)
    async with fake.running(), EngineClient(fake.url) as engine:
        yield World(db, weights, fake, engine, base_model.parent)
