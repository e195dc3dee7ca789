"""Cells and tables in Markdown, for the pages that are made from a bench's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.live.statistics import Estimate
from benchmarks.live.summary import Row

NOTHING = "–"


def table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def interval(estimate: Estimate | None, *, is_signed: bool = False) -> str:
    """Mean and 95 % interval."""
    if estimate is None:
        return NOTHING
    sign = "+" if is_signed else ""
    return f"{estimate.mean:{sign}.2f} [{estimate.low:{sign}.2f}, {estimate.high:{sign}.2f}]"


def reach(row: Row) -> str:
    """Median episodes to the threshold; later than the run when most seeds never got there."""
    counted = f"({row.reach.num_reached} of {row.reach.num_seeds})"
    return f"{row.reach.median:.0f} {counted}" if row.reach.median is not None else f"never {counted}"


def figure(row: Row, name: str, digits: int) -> str:
    value = row.figures.get(name)
    return NOTHING if value is None else f"{value:.{digits}f}"


def percent(row: Row, name: str) -> str:
    """A share in percent, with enough digits that a small one is not shown as none."""
    value = row.figures.get(name)
    if value is None:
        return NOTHING
    return f"{100 * value:.2f} %" if 0 < value < 0.1 else f"{100 * value:.1f} %"


def counts(values: Mapping[str, int]) -> str:
    return ", ".join(f"{n} × {name}" for name, n in sorted(values.items())) or "none"


def separated(table_rows: Sequence[Row]) -> list[Row]:
    """Rows whose difference to the reference has an interval without zero."""
    return [r for r in table_rows if r.against_reference and r.against_reference.low * r.against_reference.high > 0]
