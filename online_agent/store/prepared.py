"""Statements of the request path, compiled once and run on the driver's own connection.

SQLAlchemy's work for one execution of a small statement is several times the database's (50 and 10 microseconds on
SQLite), and a client's call runs eight. What is kept of it: the SQL of each dialect, the conversion of values by the
columns' types, the transaction of the connection, and its exceptions. Not there: events of the engine, defaults of
columns that are computed in Python, and lists of values (``IN``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.dml import Insert, ReturningUpdate, Update
from sqlalchemy.sql.selectable import Select

Statement = Select[*tuple[Any, ...]] | Insert | Update | ReturningUpdate[*tuple[Any, ...]]
Convert = Callable[[Any], Any]
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _Compiled:
    """``order``: names by position, None for a dialect that takes them by name. ``fixed`` stand in the statement."""

    sql: str
    order: tuple[str, ...] | None
    fixed: Mapping[str, Any]
    to_driver: Mapping[str, Convert]


class Prepared:
    """``rows`` or ``run`` it with a value for each of its named parameters."""

    def __init__(self, statement: Statement) -> None:
        """An insert has a parameter for each column of its table, by its name."""
        self.statement = statement
        self._of_dialect: dict[str, _Compiled] = {}
        self._from_driver: dict[str, tuple[tuple[int, Convert], ...]] = {}

    def rows(self, connection: Connection, values: Mapping[str, Any]) -> Rows:
        """All rows, each with the values of its columns in order. Raises what ``Connection.execute`` raises."""
        cursor = self._executed(connection, values)
        found: Rows = cursor.fetchall()
        from_driver = self._from_driver.get(connection.dialect.name)
        if from_driver is None:
            from_driver = self._conversions(connection.dialect, [column[1] for column in cursor.description])
            self._from_driver[connection.dialect.name] = from_driver
        return [_converted(row, from_driver) for row in found] if from_driver else found

    def run(self, connection: Connection, values: Mapping[str, Any]) -> None:
        """For a statement without rows. Raises what ``Connection.execute`` raises."""
        self._executed(connection, values)

    def _executed(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        compiled = self._compiled(connection.dialect)
        given = {**compiled.fixed, **values}
        for name, convert in compiled.to_driver.items():
            given[name] = convert(given[name])
        parameters = given if compiled.order is None else [given[name] for name in compiled.order]
        cursor = connection.connection.cursor()
        try:
            cursor.execute(compiled.sql, parameters)
        except connection.dialect.loaded_dbapi.Error as error:
            base = connection.dialect.loaded_dbapi.Error
            raise DBAPIError.instance(compiled.sql, None, error, base, hide_parameters=True) from error
        return cursor

    def _compiled(self, dialect: Dialect) -> _Compiled:
        known = self._of_dialect.get(dialect.name)
        if known is None:
            known = self._of_dialect[dialect.name] = self._compile(dialect)
        return known

    def _compile(self, dialect: Dialect) -> _Compiled:
        inserted = [column.key for column in self.statement.table.c] if isinstance(self.statement, Insert) else None
        compiled: Any = self.statement.compile(dialect=dialect, column_keys=inserted)
        to_driver = {
            name: convert
            for parameter, name in compiled.bind_names.items()
            if (convert := parameter.type.dialect_impl(dialect).bind_processor(dialect)) is not None
        }
        fixed = {name: value for name, value in compiled.params.items() if value is not None}
        order = tuple(compiled.positiontup) if compiled.positional else None
        return _Compiled(str(compiled), order, fixed, to_driver)

    def _conversions(self, dialect: Dialect, codes: Sequence[Any]) -> tuple[tuple[int, Convert], ...]:
        """By position; ``codes`` are the driver's own types of the columns."""
        columns = zip(self.statement.exported_columns, codes, strict=True)
        return tuple(
            (position, convert)
            for position, (column, code) in enumerate(columns)
            if (convert := column.type.dialect_impl(dialect).result_processor(dialect, code)) is not None
        )


def _converted(row: tuple[Any, ...], from_driver: tuple[tuple[int, Convert], ...]) -> tuple[Any, ...]:
    values = list(row)
    for position, convert in from_driver:
        values[position] = convert(values[position])
    return tuple(values)
