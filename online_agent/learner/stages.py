"""The six points of a step. A process killed right after any of them loses no episode and trains none twice."""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """In the order in which a step passes them."""

    RESERVED = "reserved"
    TRAINED = "trained"
    WRITTEN = "written"
    RENAMED = "renamed"
    COMMITTED = "committed"
    ANNOUNCED = "announced"
