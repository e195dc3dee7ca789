"""SQLAlchemy engines for SQLite and PostgreSQL: one that writes, one that only reads.

SQLite: WAL, synchronous=FULL, foreign keys on. Writers start with BEGIN IMMEDIATE, so that a transaction which reads
first never has to upgrade its lock. Readers are in autocommit with query_only on: each statement has its own snapshot,
and a slow reader never pins the write-ahead log. PostgreSQL readers do the same with a read-only session.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from online_agent.errors import ConfigError
from online_agent.store.encoding import to_json

WAL_AUTOCHECKPOINT_PAGES = 1000
JOURNAL_SIZE_LIMIT_BYTES = 16 * 1024 * 1024
POOL_SIZE = 8
# A SQLite connection is a file handle; PostgreSQL serves 100 connections to all processes together by default.
MAX_OVERFLOW = {"sqlite": 64, "postgresql": 8}


def database_url(url: str) -> URL:
    """The URL with its driver. Raises ConfigError for anything but a SQLite file or PostgreSQL."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigError(f"database url {url!r} cannot be read") from error
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        if parsed.database in (None, "", ":memory:"):
            raise ConfigError("database url: an in-memory SQLite cannot be shared by processes; name a file")
        return parsed.set(drivername="sqlite+pysqlite")
    if backend == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    raise ConfigError(f"database url: {backend!r} is not supported; use sqlite:/// or postgresql://")


def sqlite_path(url: URL) -> Path | None:
    return Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None


def write_engine(url: URL, busy_timeout_s: float, *, foreign_keys: bool = True) -> Engine:
    """Connections that write. ``foreign_keys`` False is for migrations, which check them before they commit."""
    if url.get_backend_name() != "sqlite":
        options = f"-c lock_timeout={int(busy_timeout_s * 1000)}"
        return _create(url, {"options": options}, pool_timeout=busy_timeout_s)
    engine = _create(url, {"timeout": busy_timeout_s}, pool_timeout=busy_timeout_s)
    keys = "ON" if foreign_keys else "OFF"
    _on_connect(engine, [f"PRAGMA foreign_keys={keys}"])
    event.listen(engine, "begin", _begin_immediate)
    return engine


def read_engine(url: URL, busy_timeout_s: float) -> Engine:
    """Connections in autocommit that refuse to write."""
    if url.get_backend_name() != "sqlite":
        options = "-c default_transaction_read_only=on"
        return _create(url, {"options": options}, pool_timeout=busy_timeout_s, isolation_level="AUTOCOMMIT")
    engine = _create(url, {"timeout": busy_timeout_s}, pool_timeout=busy_timeout_s)
    _on_connect(engine, ["PRAGMA query_only=ON"])
    return engine


def _create(url: URL, connect_args: dict[str, Any], **options: Any) -> Engine:
    return create_engine(
        url,
        connect_args=connect_args,
        pool_size=POOL_SIZE,
        max_overflow=MAX_OVERFLOW[url.get_backend_name()],
        json_serializer=to_json,
        **options,
    )


def _on_connect(engine: Engine, pragmas: list[str]) -> None:
    durable = [
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=FULL",
        f"PRAGMA wal_autocheckpoint={WAL_AUTOCHECKPOINT_PAGES}",
        f"PRAGMA journal_size_limit={JOURNAL_SIZE_LIMIT_BYTES}",
    ]

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver must not begin on its own
        for pragma in (*durable, *pragmas):
            connection.execute(pragma).close()


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
