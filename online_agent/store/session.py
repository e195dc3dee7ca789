"""The one place that commits.

Invariants: a transaction commits once at the end of its block or rolls back whole; none is open across an engine call,
a stream or a file write; within one process SQLite writers queue on a lock instead of polling the file. ``Database`` is
thread-safe and survives fork (the child drops inherited connections without closing them).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import QueuePool

from online_agent.errors import DatabaseBusy, OnlineAgentError, StorageFull
from online_agent.store import migrate
from online_agent.store.engines import database_url, read_engine, sqlite_path, write_engine
from online_agent.store.repositories.answers import AnswerRepository
from online_agent.store.repositories.changes import ChangeRepository
from online_agent.store.repositories.clients import ClientRepository
from online_agent.store.repositories.control import ControlRepository
from online_agent.store.repositories.episodes import EpisodeRepository
from online_agent.store.repositories.events import DetectorRepository, EventRepository
from online_agent.store.repositories.expiry import ExpiryRepository
from online_agent.store.repositories.feedback import FeedbackRepository
from online_agent.store.repositories.idempotency import IdempotencyRepository
from online_agent.store.repositories.imports import ImportRepository
from online_agent.store.repositories.interruptions import InterruptionRepository
from online_agent.store.repositories.judgements import JudgementRepository
from online_agent.store.repositories.keys import KeyRepository
from online_agent.store.repositories.old_logprobs import OldLogprobRepository
from online_agent.store.repositories.people import PeopleRepository
from online_agent.store.repositories.processes import LeaseRepository, ProcessRepository
from online_agent.store.repositories.steps import StepRepository
from online_agent.store.repositories.tenants import TenantRepository
from online_agent.store.repositories.traces import TraceRepository
from online_agent.store.repositories.weights import WeightRepository

WAL_LIMIT_BYTES = 32 * 1024 * 1024
_WAL_CHECK_EVERY = 128
_WAL_GAP_MS = 250

Clock = Callable[[], float]


class Transaction:
    """The repositories over one connection. All of them see the same clock."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self.connection = connection
        self.clock = clock

    @cached_property
    def episodes(self) -> EpisodeRepository:
        return EpisodeRepository(self.connection, self.clock)

    @cached_property
    def clients(self) -> ClientRepository:
        return ClientRepository(self.connection, self.clock)

    @cached_property
    def answers(self) -> AnswerRepository:
        return AnswerRepository(self.connection, self.clock)

    @cached_property
    def judgements(self) -> JudgementRepository:
        return JudgementRepository(self.connection, self.clock)

    @cached_property
    def feedback(self) -> FeedbackRepository:
        return FeedbackRepository(self.connection, self.clock)

    @cached_property
    def weights(self) -> WeightRepository:
        return WeightRepository(self.connection, self.clock)

    @cached_property
    def steps(self) -> StepRepository:
        return StepRepository(self.connection, self.clock)

    @cached_property
    def traces(self) -> TraceRepository:
        return TraceRepository(self.connection, self.clock)

    @cached_property
    def control(self) -> ControlRepository:
        return ControlRepository(self.connection, self.clock)

    @cached_property
    def changes(self) -> ChangeRepository:
        return ChangeRepository(self.connection, self.clock)

    @cached_property
    def events(self) -> EventRepository:
        return EventRepository(self.connection, self.clock)

    @cached_property
    def detectors(self) -> DetectorRepository:
        return DetectorRepository(self.connection, self.clock)

    @cached_property
    def keys(self) -> KeyRepository:
        return KeyRepository(self.connection, self.clock)

    @cached_property
    def tenants(self) -> TenantRepository:
        return TenantRepository(self.connection, self.clock)

    @cached_property
    def people(self) -> PeopleRepository:
        return PeopleRepository(self.connection, self.clock)

    @cached_property
    def expiry(self) -> ExpiryRepository:
        return ExpiryRepository(self.connection, self.clock)

    @cached_property
    def idempotency(self) -> IdempotencyRepository:
        return IdempotencyRepository(self.connection, self.clock)

    @cached_property
    def processes(self) -> ProcessRepository:
        return ProcessRepository(self.connection, self.clock)

    @cached_property
    def imports(self) -> ImportRepository:
        return ImportRepository(self.connection, self.clock)

    @cached_property
    def interruptions(self) -> InterruptionRepository:
        return InterruptionRepository(self.connection, self.clock)

    @cached_property
    def old_logprobs(self) -> OldLogprobRepository:
        return OldLogprobRepository(self.connection, self.clock)

    @cached_property
    def leases(self) -> LeaseRepository:
        return LeaseRepository(self.connection, self.clock)


class Database:
    """A SQLite file or a PostgreSQL database. Raises ConfigError for another URL.

    ``clock`` gives unix seconds; leases and times of all rows come from it.
    """

    def __init__(self, url: str, busy_timeout_s: float = 30.0, clock: Clock = time.time) -> None:
        self._url = database_url(url)
        self._busy_timeout_s = busy_timeout_s
        self.clock = clock
        self._path = sqlite_path(self._url)
        self._writer = write_engine(self._url, busy_timeout_s)
        self._reader = read_engine(self._url, busy_timeout_s)
        self._lock = threading.Lock()
        self._lock_holder: int | None = None
        self._num_commits = 0
        _reset_after_fork(self)

    @property
    def is_sqlite(self) -> bool:
        return self._path is not None

    @property
    def place(self) -> str:
        """The URL, without its password."""
        return self._url.render_as_string(hide_password=True)

    @property
    def num_connections_in_use(self) -> int:
        """Connections that transactions and readings under way hold in this process."""
        pools = (self._writer.pool, self._reader.pool)
        return sum(pool.checkedout() for pool in pools if isinstance(pool, QueuePool))

    def migrate(self, revision: str = "head") -> None:
        """The schema is at ``revision``. Safe to call from several processes at once; creates the SQLite file."""
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        migrate.upgrade(self._url, revision, self._busy_timeout_s)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Everything done through ``tx`` is committed together, or nothing is.

        Raises DatabaseBusy when the database stayed locked for ``busy_timeout_s``, StorageFull when the disk is full.
        Keep it short; opening a second one inside it in the same thread is a bug and fails at once.
        """
        if self._path is None:
            with _translated_errors(), self._writer.begin() as connection:
                yield Transaction(connection, self.clock)
            return
        with self._exclusive(), _translated_errors():
            with self._writer.begin() as connection:
                yield Transaction(connection, self.clock)
            self._num_commits += 1
            if self._num_commits % _WAL_CHECK_EVERY == 0:
                self._bound_wal()

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Reads only: a write raises. Each statement sees what is committed when it runs."""
        with _translated_errors(), self._reader.connect() as connection:
            yield Transaction(connection, self.clock)

    def wal_bytes(self) -> int:
        """Size of SQLite's write-ahead log, 0 for PostgreSQL."""
        if self._path is None:
            return 0
        try:
            return os.stat(f"{self._path}-wal").st_size
        except FileNotFoundError:
            return 0

    def close(self) -> None:
        self._writer.dispose()
        self._reader.dispose()

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        me = threading.get_ident()
        assert self._lock_holder != me, "a transaction was opened inside a transaction"
        if not self._lock.acquire(timeout=self._busy_timeout_s):
            raise DatabaseBusy(f"the database was busy for {self._busy_timeout_s} s", retry_after_s=1.0)
        self._lock_holder = me
        try:
            yield
        finally:
            self._lock_holder = None
            self._lock.release()

    def _bound_wal(self) -> None:
        """Overlapping readers can keep SQLite from restarting its log; past the limit, wait for a gap and cut it."""
        if self.wal_bytes() > WAL_LIMIT_BYTES:
            with self._reader.connect() as connection:
                connection.exec_driver_sql(f"PRAGMA busy_timeout={_WAL_GAP_MS}").close()
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").close()
                connection.exec_driver_sql(f"PRAGMA busy_timeout={int(self._busy_timeout_s * 1000)}").close()

    def _drop_inherited(self) -> None:
        self._lock = threading.Lock()
        self._lock_holder = None
        self._writer.dispose(close=False)
        self._reader.dispose(close=False)


def _reset_after_fork(database: Database) -> None:
    reference = weakref.ref(database)

    def reset() -> None:
        inherited = reference()
        if inherited is not None:
            inherited._drop_inherited()

    os.register_at_fork(after_in_child=reset)


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except PoolTimeout as error:
        raise DatabaseBusy("all database connections are in use", retry_after_s=1.0) from error
    except OperationalError as error:
        known = _known(error)
        if known is None:
            raise
        raise known from error


def _known(error: OperationalError) -> OnlineAgentError | None:
    text = str(error.orig)
    if "database is locked" in text or "lock timeout" in text or "deadlock detected" in text:
        return DatabaseBusy("the database is busy", retry_after_s=1.0)
    if "database or disk is full" in text or "No space left on device" in text:
        return StorageFull("the database has no space left")
    return None
