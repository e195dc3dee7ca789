"""The kinds of bug, and how a family of functions describes its own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BugKind(StrEnum):
    WRONG_OPERATOR = "wrong_operator"
    SWAPPED_ARGUMENTS = "swapped_arguments"
    OFF_BY_ONE = "off_by_one"
    WRONG_COMPARISON = "wrong_comparison"
    WRONG_CONSTANT = "wrong_constant"
    MISSING_RETURN = "missing_return"
    WRONG_VARIABLE = "wrong_variable"
    INVERTED_CONDITION = "inverted_condition"
    WRONG_DEFAULT = "wrong_default"
    WRONG_SLICE = "wrong_slice"
    WRONG_METHOD = "wrong_method"
    WRONG_ACCUMULATOR = "wrong_accumulator"


@dataclass(frozen=True, slots=True)
class Bug:
    """In a right source, ``right`` (which occurs there once) becomes ``wrong``. Both may hold name placeholders."""

    kind: BugKind
    right: str
    wrong: str


@dataclass(frozen=True, slots=True)
class Family:
    """Functions alike but for their names.

    ``source`` is right Python with placeholders: ``{f}`` the function under test, ``{g}`` a second function,
    ``{a} {b} {c}`` numbers, ``{xs}`` a list, ``{acc}`` an accumulator, ``{v}`` an element, ``{s}`` a string.
    ``arguments`` names how each argument of ``{f}`` is drawn (see generator.draw_argument).
    """

    names: tuple[str, ...]
    source: str
    arguments: tuple[str, ...]
    bugs: tuple[Bug, ...]
    helper: str = ""
