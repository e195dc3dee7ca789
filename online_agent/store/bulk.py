"""Many rows into one table: COPY in its binary form on PostgreSQL, one prepared statement on SQLite; the same rows.

COPY spares the round trips, the binding of each value and the parsing of each row (``bench ingest``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg
from sqlalchemy import JSON, BigInteger, Boolean, Column, Connection, Double, Integer, LargeBinary, Table, insert
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import OperationalError
from sqlalchemy.types import String, TypeEngine

Row = Mapping[str, Any]
Convert = Callable[[Any], Any]

# The first that fits; BigInteger is an Integer, Text a String. Binary COPY converts nothing: the widths must be exact.
_NAMES: tuple[tuple[type[TypeEngine[Any]], str], ...] = (
    (BigInteger, "int8"),
    (Integer, "int4"),
    (Double, "float8"),
    (Boolean, "bool"),
    (JSON, "json"),
    (LargeBinary, "bytea"),
    (String, "text"),
)


def insert_rows(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """The rows are in the table, as one statement of the transaction: all of them or none.

    They have the same keys; a column without one gets its default.
    """
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        _copy(connection, table, rows)
    else:
        connection.execute(insert(table), list(rows))


def _copy(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    columns = [table.c[name] for name in rows[0]]
    converted = [(column.name, _convert(column, connection.dialect)) for column in columns]
    names = ", ".join(column.name for column in columns)
    statement = f"COPY {table.name} ({names}) FROM STDIN (FORMAT BINARY)"
    driver: Any = connection.connection.driver_connection
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types([_type_name(column) for column in columns])
            for row in rows:
                copy.write_row([convert(row[name]) for name, convert in converted])
    except psycopg.OperationalError as error:  # what the store makes of a lock or a full disk is decided in one place
        raise OperationalError(statement, None, error) from error


def _type_name(column: Column[Any]) -> str:
    return next(name for kind, name in _NAMES if isinstance(column.type, kind))


def _convert(column: Column[Any], dialect: Dialect) -> Convert:
    """What SQLAlchemy does to a value before the driver gets it."""
    processor: Convert | None = column.type.dialect_impl(dialect).bind_processor(dialect)
    return processor or _unchanged


def _unchanged(value: Any) -> Any:
    return value
