"""Runs the migrations from the ``migrations`` package, installed or in a checkout.

An upgrade is one transaction. On SQLite foreign keys are off while tables are rebuilt (dropping the old copy would
cascade) and are checked before the commit.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection
from sqlalchemy.engine import URL

from online_agent.errors import ConfigError
from online_agent.store.engines import write_engine

# Any constant: processes that migrate one PostgreSQL at the same time take turns on it.
_ADVISORY_LOCK = 732_911_486


def upgrade(url: URL, revision: str, busy_timeout_s: float) -> None:
    _run(url, revision, busy_timeout_s, is_upgrade=True)


def downgrade(url: URL, revision: str, busy_timeout_s: float) -> None:
    _run(url, revision, busy_timeout_s, is_upgrade=False)


def current_revision(connection: Connection) -> str | None:
    """The revision the database is at, None when it is empty."""
    return MigrationContext.configure(connection).get_current_revision()


def script_directory() -> Path:
    spec = find_spec("migrations")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("the package 'migrations' is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def _run(url: URL, revision: str, busy_timeout_s: float, *, is_upgrade: bool) -> None:
    engine = write_engine(url, busy_timeout_s, foreign_keys=False)
    try:
        with engine.begin() as connection:
            if url.get_backend_name() == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")
            config = Config()
            config.set_main_option("script_location", str(script_directory()).replace("%", "%%"))
            config.attributes["connection"] = connection
            (command.upgrade if is_upgrade else command.downgrade)(config, revision)
            _check_foreign_keys(connection)
    finally:
        engine.dispose()


def _check_foreign_keys(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
        if broken:
            raise ConfigError(f"the migration would leave {len(broken)} rows without their parent: {broken[:3]}")
