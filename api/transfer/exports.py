"""Export as a stream: one page is read, sent and forgotten before the next one is read.

Each page is read in autocommit, so that a slow client holds no transaction and no connection between pages. What is
erased before its page is read is not in it; what is erased while its page is read is taken out before it is sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import orjson
from fastapi.responses import StreamingResponse

from api.auth import Caller
from api.runtime import Runtime
from online_agent.errors import BadInput
from online_agent.store.records import CLIENT_ENV
from online_agent.store.session import Transaction
from online_agent.transfer.formats import ExportFormat, Shape
from online_agent.transfer.native import ENDED, Row, StoredEpisode, native_rows
from online_agent.transfer.parquet import ParquetStream
from online_agent.transfer.shapes import shaped
from online_agent.types import EpisodeStatus

PAGE_EPISODES = 8
ROW_GROUP_ROWS = 64


_MEDIA = {ExportFormat.JSONL: "application/x-ndjson", ExportFormat.PARQUET: "application/vnd.apache.parquet"}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which episodes of the tenant, newest first. ``status`` None: all that have ended."""

    status: EpisodeStatus | None
    env: str | None
    weight_version: int | None
    cursor: str | None


async def export_response(
    runtime: Runtime, caller: Caller, selection: Selection, export_format: ExportFormat, shape: Shape
) -> StreamingResponse:
    """Raises before anything is sent: the first page is read here."""
    if selection.status is not None and selection.status not in ENDED:
        raise BadInput(f"status: {selection.status} episodes have no end yet, or no result", param="status")
    if shape is not Shape.NATIVE and runtime.renderer is None:
        raise BadInput(f"shape: {shape} needs the tokenizer, which this server does not have", param="shape")
    rest = _pages(runtime, caller.tenant_id, selection, shape)
    pages = _chained(await anext(rest), rest)
    is_jsonl = export_format is ExportFormat.JSONL
    content = _jsonl(pages) if is_jsonl else _parquet(runtime, pages, ParquetStream(shape))
    headers = {"Content-Disposition": f'attachment; filename="episodes-{shape}.{export_format}"'}
    return StreamingResponse(content, media_type=_MEDIA[export_format], headers=headers)


async def _chained(first: list[Row], rest: AsyncIterator[list[Row]]) -> AsyncIterator[list[Row]]:
    yield first
    async for rows in rest:
        yield rows


async def _jsonl(pages: AsyncIterator[list[Row]]) -> AsyncIterator[bytes]:
    async for rows in pages:
        yield b"".join(orjson.dumps(row) + b"\n" for row in rows)


async def _parquet(runtime: Runtime, pages: AsyncIterator[list[Row]], stream: ParquetStream) -> AsyncIterator[bytes]:
    waiting: list[Row] = []
    async for rows in pages:
        waiting += rows
        if len(waiting) >= ROW_GROUP_ROWS:
            group, waiting = waiting, []
            yield await runtime.on_thread(lambda group=group: stream.add(group))  # type: ignore[misc]
    yield await runtime.on_thread(lambda: stream.add(waiting) + stream.end())


async def _pages(runtime: Runtime, tenant_id: str, selection: Selection, shape: Shape) -> AsyncIterator[list[Row]]:
    cursor = selection.cursor
    while True:
        after = cursor
        stored, cursor = await runtime.read(lambda tx: _page(tx, tenant_id, selection, after))  # noqa: B023
        yield await runtime.on_thread(lambda: _shaped_rows(runtime, stored, shape))  # noqa: B023
        if cursor is None:
            return


def _page(
    tx: Transaction, tenant_id: str, selection: Selection, cursor: str | None
) -> tuple[list[StoredEpisode], str | None]:
    page = tx.episodes.list(
        tenant_id,
        status=selection.status,
        env=selection.env,
        weight_version=selection.weight_version,
        cursor=cursor,
        limit=PAGE_EPISODES,
    )
    stored: list[StoredEpisode] = []
    for record in page.items:
        if record.status in ENDED:
            is_client = record.env == CLIENT_ENV
            links = tx.clients.links(record.id) if is_client else []
            completions = tx.clients.completions(record.id) if is_client else []
            stored.append(StoredEpisode(record, tx.episodes.turns(record.id), links, completions))
    still_there = tx.episodes.progress([episode.record.id for episode in stored])
    return [episode for episode in stored if episode.record.id in still_there], page.cursor


def _shaped_rows(runtime: Runtime, stored: list[StoredEpisode], shape: Shape) -> list[Row]:
    def decode(token_ids: object) -> str:
        assert runtime.renderer is not None  # checked before the first page
        return runtime.renderer.decode(token_ids)  # type: ignore[arg-type]

    rows = (shaped(row, shape, decode) for episode in stored for row in native_rows(episode))
    return [row for row in rows if row is not None]
