"""``online-agent episodes export`` and ``import``: files of episodes, to and from the service."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from online_agent.errors import BadInput
from online_agent.transfer.formats import ExportFormat, Shape

_TIMEOUT_S = 600.0
_MAX_BATCH_BYTES = 8_000_000
_MAX_BATCH_EPISODES = 1000


def export_episodes(
    out: Annotated[Path, typer.Option("--out", help="The file to write; one that exists is replaced at the end.")],
    file_format: Annotated[ExportFormat, typer.Option("--format")] = ExportFormat.JSONL,
    shape: Annotated[Shape, typer.Option(help="native can be imported again; trl and verl are for these.")] = (
        Shape.NATIVE
    ),
    status: Annotated[str | None, typer.Option(help="Only those; open and failed ones have no end to show.")] = None,
    env: Annotated[str | None, typer.Option(help="Only episodes of this environment.")] = None,
    weight_version: Annotated[int | None, typer.Option(help="Only episodes that this version sampled in.")] = None,
) -> None:
    """Write the ended episodes to a file, newest first."""
    from online_agent.cli.client import connect

    query: dict[str, Any] = {"format": file_format.value, "shape": shape.value}
    chosen = {"status": status, "env": env, "weight_version": weight_version}
    if not out.parent.is_dir():
        raise typer.BadParameter(f"there is no directory {out.parent}", param_hint="--out")
    partial = out.with_name(f"{out.name}.partial")
    try:
        with connect(_TIMEOUT_S) as api, partial.open("wb") as file:
            num_bytes = _write(file, api.download("/v1/episodes/export", **query, **chosen))
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)
    typer.echo(f"{out}: {num_bytes} bytes")


def import_episodes(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="JSONL, an episode a line.")],
) -> None:
    """Bring episodes from a file, in parts; running it again goes on where it broke off."""
    from online_agent.cli.client import connect

    num_created = num_seen = 0
    with connect(_TIMEOUT_S) as api, _progress() as progress:
        task = progress.add_task("importing", total=file.stat().st_size)
        for lines, num_bytes in _batches(file):
            answer = api.post_json("/v1/episodes/import", b'{"episodes":[' + b",".join(lines) + b"]}")
            num_created += answer["num_created"]
            num_seen += len(lines)
            progress.update(task, advance=num_bytes)
    typer.echo(f"{num_seen} episodes, {num_created} of them new")


def _write(file: Any, chunks: Iterator[bytes]) -> int:
    num_bytes = 0
    with _progress() as progress:
        task = progress.add_task("exporting", total=None)
        for chunk in chunks:
            num_bytes += file.write(chunk)
            progress.update(task, completed=num_bytes)
    return num_bytes


def _progress() -> Any:
    """Bytes so far on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, SpinnerColumn, TextColumn, TransferSpeedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _check_json(line: bytes, place: str) -> None:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadInput(f"{place}: not JSON: {error}") from error


def _batches(file: Path) -> Iterator[tuple[list[bytes], int]]:
    """Lines that fit in one request, and the bytes of the file that they are."""
    lines: list[bytes] = []
    size = 0
    with file.open("rb") as content:
        for number, line in enumerate(content, 1):
            if len(line) > _MAX_BATCH_BYTES:
                raise BadInput(f"{file}:{number}: a line of {len(line)} bytes; the limit is {_MAX_BATCH_BYTES}")
            if lines and (size + len(line) > _MAX_BATCH_BYTES or len(lines) == _MAX_BATCH_EPISODES):
                yield lines, size
                lines, size = [], 0
            if line.strip():
                _check_json(line, f"{file}:{number}")
                lines.append(line.strip())
            size += len(line)
    if lines:
        yield lines, size
