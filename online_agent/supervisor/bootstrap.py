"""What must be there before anything runs: the schema, a version that serves, a key. Each is made once."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from online_agent.config.settings import Settings
from online_agent.errors import ConfigError
from online_agent.store.records import VersionNew
from online_agent.store.session import Database
from online_agent.telemetry.logging import get_logger
from online_agent.types import Scope, VersionOrigin, VersionState
from online_agent.weights.store import WeightStore

_log = get_logger(__name__)

SEED_VERSION = 0
TENANT = "default"
KEY_NAME = "made by online-agent up"
# The policy that comes with the package; `online-agent seed-policy` builds it anew.
SHIPPED_SEED = Path(__file__).parent.parent / "seed_policy" / "checkpoint"


def prepare(settings: Settings) -> Path:
    """The schema is current, some version serves, and the file returned holds a key that opens everything.

    Raises ConfigError when there are no weights to start from, WeightsError when those named cannot be used.
    """
    with _migrated(settings) as db:
        weights = WeightStore(settings.weights_dir)
        for line in weights.clean():
            _log.warning("weights directory cleaned", what=line)
        import_seed(db, weights, settings.weights.seed_model)
        with db.transaction() as tx:
            tx.tenants.opt_in_once(TENANT)  # the operator's own: whoever starts the service for it wants it to learn
        return ensure_key(db, settings.data_dir / "keys" / "up.key")


@contextmanager
def _migrated(settings: Settings) -> Iterator[Database]:
    """The database with the current schema; data directory and SQLite file are made where they are missing."""
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    db = Database(settings.database_url, settings.database.busy_timeout_s)
    try:
        db.migrate()
        yield db
    finally:
        db.close()


@dataclass(frozen=True, slots=True)
class MadeKey:
    """``database``: the URL of the one that it is in, without a password."""

    id: str
    secret: str
    database: str


def make_key(settings: Settings, tenant: str, name: str, scopes: Collection[Scope], **limits: Any) -> MadeKey:
    """A new key of any tenant, which need not exist: for whoever holds the database.

    ``limits`` as in ``KeyRepository.create``. Raises BadInput naming the bad value.
    """
    with _migrated(settings) as db:
        with db.transaction() as tx:
            record, secret = tx.keys.create(tenant, name, scopes, **limits)
        return MadeKey(record.id, secret, db.place)


def import_seed(db: Database, weights: WeightStore, seed_model: str) -> None:
    """Version 0 holds the seed model and serves, unless there are versions already."""
    with db.reading() as tx:
        if tx.weights.latest() is not None:
            return
    model_dir = Path(seed_model) if seed_model else SHIPPED_SEED
    if not model_dir.is_dir():
        raise ConfigError(f"weights.seed_model: {model_dir} is not a directory with a Hugging Face model")
    if SEED_VERSION in weights.versions():  # imported by a start that was killed before it wrote the row
        seed = weights.open(SEED_VERSION)
    else:
        seed = weights.import_seed(model_dir, SEED_VERSION)
    with db.transaction() as tx:
        tx.weights.insert(
            VersionNew(
                SEED_VERSION,
                VersionOrigin.SEED,
                content_hash=seed.manifest.content_hash,
                recipe=seed.manifest.recipe,
                state=VersionState.SERVING,
            )
        )
        # The one version that no learner can make again.
        tx.weights.pin(SEED_VERSION)
    _log.info("seed imported", source=str(model_dir), content_hash=seed.manifest.content_hash)


def ensure_key(db: Database, path: Path) -> Path:
    """A file readable by its owner alone, with a key of all scopes that is valid in this database."""
    if path.is_file():
        with db.reading() as tx:
            if tx.keys.authenticate(path.read_text().strip()) is not None:
                return path
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
    with db.transaction() as tx:
        _, secret = tx.keys.create(TENANT, KEY_NAME, frozenset(Scope))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
    return path
