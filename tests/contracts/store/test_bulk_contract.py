"""Rows written in bulk are those that single statements write, on both databases, and come all or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import psycopg
import pytest
from sqlalchemy import Table, insert, select
from sqlalchemy.exc import StatementError

from envs.types import Verdict
from online_agent.errors import DatabaseBusy
from online_agent.store import bulk
from online_agent.store.bulk import insert_rows
from online_agent.store.models import Base, Episode, Turn, table_of
from online_agent.store.records import EpisodeNew, TurnNew
from online_agent.store.repositories.episodes import episode_values
from online_agent.store.repositories.turns import turn_values
from online_agent.store.session import Database
from online_agent.types import Sampling, Span, SpanKind, VersionRun

_EPISODES, _TURNS = table_of(Episode), table_of(Turn)


def _episode(**other: Any) -> dict[str, Any]:
    new = EpisodeNew("acme", "imported:shop", "order-ä", "train", sampling=Sampling(temperature=1))
    return {**episode_values(new, 1.5), **other}


def _turn(episode_id: str, number: int, **other: Any) -> dict[str, Any]:
    action = Span(
        SpanKind.ACTION,
        0,
        np.array([7, 2**31 - 1], np.int32),
        np.array([-0.1, np.nan], np.float32),
        (VersionRun(3, 0, 2),),
    )
    text = 'NUL \x00, ünïcode 🙂, a backslash \\, a tab \t, a quote " and \\N'
    new = TurnNew([action], text=text, finish_reason="stop", latency_s=0.1)
    return {**turn_values(episode_id, number, "acme", new, 2.25), **other}


def _write(db: Database, turns: list[dict[str, Any]]) -> None:
    with db.transaction() as tx:
        insert_rows(tx.connection, _EPISODES, [_episode(id="e")])
        insert_rows(tx.connection, _TURNS, turns)


def _rows(db: Database, table: Table) -> list[dict[str, Any]]:
    with db.reading() as tx:
        return [dict(row) for row in tx.connection.execute(select(table).order_by(*table.primary_key)).mappings()]


def _without(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key != name}


def test_a_row_in_bulk_equals_the_row_of_a_single_statement(db: Database) -> None:
    full = _episode(
        id="a1",
        key_id="key-1",
        task={"nested": [1, 2.5, None, True, "€"]},
        tags={},
        evidence=dict(Verdict(1.0, True, {"score": float("inf")}).evidence),
        is_success=True,
        reward=-1,
        oldest_version=0,
        finished_at=3,
        untrainable_reason="",
    )
    empty = {**dict.fromkeys(full), **_episode(id="a2")}
    turns = [_turn("a1", 0), _turn("a1", 1, token_ids=b"", logprobs=b"", routed_experts=b"\x00\xff")]
    with db.transaction() as tx:
        insert_rows(tx.connection, _EPISODES, [full, empty])
        insert_rows(tx.connection, _TURNS, turns)
        for row in (full, empty):
            tx.connection.execute(insert(_EPISODES), {**row, "id": row["id"].replace("a", "b")})
        for row in turns:
            tx.connection.execute(insert(_TURNS), {**row, "episode_id": "b1"})
    episodes, stored_turns = _rows(db, _EPISODES), _rows(db, _TURNS)
    assert [row["id"] for row in episodes] == ["a1", "a2", "b1", "b2"]
    assert [_without(row, "id") for row in episodes[:2]] == [_without(row, "id") for row in episodes[2:]]
    assert [(row["episode_id"], row["number"]) for row in stored_turns] == [("a1", 0), ("a1", 1), ("b1", 0), ("b1", 1)]
    assert [_without(row, "episode_id") for row in stored_turns[:2]] == [
        _without(row, "episode_id") for row in stored_turns[2:]
    ]
    assert stored_turns[0]["content"]["text"].startswith("NUL \x00")


def test_columns_that_are_not_given_get_their_defaults(db: Database) -> None:
    row = {key: value for key, value in _episode(id="e").items() if key != "num_tool_calls"}
    with db.transaction() as tx:
        insert_rows(tx.connection, _EPISODES, [row])
        insert_rows(tx.connection, _TURNS, [])
    [stored] = _rows(db, _EPISODES)
    assert (stored["num_tool_calls"], stored["step"]) == (0, None)


def test_one_bad_row_stores_none_of_them(db: Database) -> None:
    rows = [_turn("e", 0), _turn("e", 1, token_ids=object())]
    with pytest.raises((StatementError, psycopg.Error, TypeError)):
        _write(db, rows)
    assert _rows(db, _EPISODES) == _rows(db, _TURNS) == []
    _write(db, rows[:1])  # the connection serves the next transaction
    assert len(_rows(db, _TURNS)) == 1


def test_every_column_has_a_type_that_can_be_copied() -> None:
    names = {(table.name, c.name): bulk._type_name(c) for table in Base.metadata.tables.values() for c in table.columns}
    assert names["episodes", "max_new_tokens"] == "int4"
    assert names["feedback", "id"] == "int8"
    assert names["turns", "content"] == "json"
    assert names["turns", "latency_s"] == "float8"


@pytest.mark.postgres
def test_a_lock_that_is_not_given_in_time_is_busy(migrated_postgres: str) -> None:
    holder = Database(migrated_postgres)
    waiter = Database(migrated_postgres, busy_timeout_s=0.1)
    with holder.transaction() as held:
        held.connection.exec_driver_sql("LOCK TABLE episodes")
        with pytest.raises(DatabaseBusy), waiter.transaction() as tx:
            insert_rows(tx.connection, _EPISODES, [_episode(id="e")])
        held.connection.rollback()
    holder.close()
    waiter.close()
