"""How rows are shown: a table for people, JSON for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

Row = Mapping[str, Any]
Column = tuple[str, Callable[[Row], Any]]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

_PIPED_WIDTH = 10_000


def show_rows(rows: Iterable[Row], columns: Sequence[Column], *, as_json: bool, empty: str = "nothing yet") -> None:
    """A row each, its first field (an id or a name) unbroken; ``--json`` prints the rows as the API gave them."""
    rows = list(rows)
    if as_json:
        show_json(rows)
        return
    if not rows:
        typer.echo(empty)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, (title, _) in enumerate(columns):
        table.add_column(title, overflow="fold", min_width=len(title), no_wrap=number == 0)
    for row in rows:
        table.add_row(*(Text(as_text(value(row))) for _, value in columns))
    console = Console()
    if not console.is_terminal:
        console.width = _PIPED_WIDTH  # a line a row, for grep and cut
    console.print(table, crop=False)


def show_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """One line a fact; nested values are indented JSON."""
    if as_json:
        show_json(facts)
        return
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        text = json.dumps(value, indent=2) if isinstance(value, dict | list) and value else as_text(value)
        typer.echo(f"{name:<{width}}  {text}")


def show_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def field(name: str) -> Column:
    return name, lambda row: row.get(name)


def age(title: str, name: str) -> Column:
    """How long ago a time (unix seconds) was."""
    return title, lambda row: _ago(row.get(name))


def due(title: str, name: str) -> Column:
    """In how long a time (unix seconds) will be, or how long ago it was."""
    return title, lambda row: _until(row.get(name))


def as_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _ago(at: float | None) -> str:
    if at is None:
        return "-"
    return f"{_length(time.time() - at)} ago"


def _until(at: float | None) -> str:
    if at is None or at <= time.time():
        return _ago(at)
    return f"in {_length(at - time.time())}"


def _length(seconds: float) -> str:
    whole = max(0, int(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if whole >= size:
            return f"{whole // size} {unit}"
    return f"{whole} s"
