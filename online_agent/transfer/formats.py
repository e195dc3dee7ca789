"""What an export can look like; named by the API and by the command line, which imports nothing heavy."""

from __future__ import annotations

from enum import StrEnum


class Shape(StrEnum):
    """``native`` can be imported again; ``trl`` and ``verl`` are rows for these libraries."""

    NATIVE = "native"
    TRL = "trl"
    VERL = "verl"


class ExportFormat(StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"
