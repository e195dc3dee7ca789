"""The declarative base, the naming convention of constraints and the column types shared by all tables."""

from __future__ import annotations

from typing import Annotated, Any

from sqlalchemy import JSON, BigInteger, Double, Integer, LargeBinary, MetaData, String, Table, Text
from sqlalchemy.orm import DeclarativeBase, mapped_column

NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

# SQLite gives row ids only to a column declared INTEGER.
RowId = Annotated[
    int, mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
]
Name = Annotated[str, mapped_column(String(255))]
Word = Annotated[str, mapped_column(String(32))]
Traceparent = Annotated[str, mapped_column(String(55))]  # version 00 of W3C's trace context has exactly this length
LongText = Annotated[str, mapped_column(Text)]
Seconds = Annotated[float, mapped_column(Double)]
JsonDict = Annotated[dict[str, Any], mapped_column(JSON(none_as_null=True))]
Blob = Annotated[bytes, mapped_column(LargeBinary)]


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING_CONVENTION)


def table_of(model: type[Base]) -> Table:
    """The model's table, for statements that are built once: they skip the ORM's compile step."""
    table = model.__table__
    assert isinstance(table, Table)
    return table
