"""Prepared statements do on SQLite and PostgreSQL what SQLAlchemy does with the same ones."""

from __future__ import annotations

import pytest
from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError

from online_agent.errors import DatabaseBusy
from online_agent.store.models import Completion, Turn, table_of
from online_agent.store.prepared import Prepared
from online_agent.store.session import Database
from tests.fakes.client_episodes import answer, open_client

_COMPLETIONS, _TURNS = table_of(Completion), table_of(Turn)
OF_EPISODE = select(_COMPLETIONS).where(_COMPLETIONS.c.episode_id == bindparam("of"))
TURNS = select(_TURNS).where(_TURNS.c.episode_id == bindparam("of"), _TURNS.c.number >= 0)


@pytest.mark.parametrize("statement", [OF_EPISODE, TURNS])
def test_rows_have_the_values_that_sqlalchemy_reads(db: Database, statement: object) -> None:
    episode_id = open_client(db)
    answer(db, episode_id, message={"text": "ünï\x00", "calls": []}, is_cut_short=True)
    with db.reading() as tx:
        read = Prepared(statement).rows(tx.connection, {"of": episode_id})  # type: ignore[arg-type]
        expected = tx.connection.execute(statement, {"of": episode_id}).all()  # type: ignore[call-overload]
    assert read == [tuple(row) for row in expected]
    assert [type(value) for value in read[0]] == [type(value) for value in expected[0]]


def test_an_insert_stores_what_sqlalchemy_stores(db: Database) -> None:
    episode_id = open_client(db)
    answer(db, episode_id)
    with db.transaction() as tx:
        [row] = tx.connection.execute(OF_EPISODE, {"of": episode_id}).mappings().all()
        values = {**row, "turn": 7, "message": {"text": "\x00 é", "n": [1, None]}, "has_tools": True, "tags": {}}
        Prepared(insert(_COMPLETIONS)).run(tx.connection, values)
    with db.reading() as tx:
        [stored] = [
            row for row in tx.connection.execute(OF_EPISODE, {"of": episode_id}).mappings().all() if row["turn"] == 7
        ]
    assert dict(stored) == values


def test_an_update_returns_what_it_changed_and_rolls_back_with_its_transaction(db: Database) -> None:
    episode_id = open_client(db)
    answer(db, episode_id)
    renamed = Prepared(
        update(_COMPLETIONS)
        .where(_COMPLETIONS.c.episode_id == bindparam("of"), _COMPLETIONS.c.is_cut_short.is_(False))
        .values(is_cut_short=True, protocol=bindparam("name"))
        .returning(_COMPLETIONS.c.is_cut_short, _COMPLETIONS.c.tags)
    )

    def change_and_fail() -> None:
        with db.transaction() as tx:
            assert renamed.rows(tx.connection, {"of": episode_id, "name": "other"}) == [(True, {})]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        change_and_fail()
    with db.reading() as tx:
        [row] = tx.connection.execute(OF_EPISODE, {"of": episode_id}).all()
    assert (row.protocol, row.is_cut_short) == ("chat", False)


def test_errors_are_sqlalchemys(db: Database) -> None:
    values = dict.fromkeys(_TURNS.columns.keys()) | {"content": {}, "span_index": []}
    with pytest.raises(IntegrityError), db.transaction() as tx:
        Prepared(insert(_TURNS)).run(tx.connection, values)


def test_a_reader_cannot_write(db: Database) -> None:
    change = Prepared(update(_TURNS).values(latency_s=bindparam("seconds")))
    with pytest.raises(DBAPIError, match="read"), db.reading() as tx:
        change.run(tx.connection, {"seconds": 1.0})


def test_a_locked_database_is_busy(sqlite_url: str) -> None:
    holder, other = Database(sqlite_url), Database(sqlite_url, busy_timeout_s=0.1)
    try:
        with holder.transaction(), pytest.raises(DatabaseBusy), other.transaction():
            pass
    finally:
        holder.close()
        other.close()


def test_a_missing_value_is_named(db: Database) -> None:
    with db.reading() as tx, pytest.raises((KeyError, ProgrammingError), match="of"):
        Prepared(OF_EPISODE).rows(tx.connection, {})
