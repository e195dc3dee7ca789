"""What all request bodies and answers share, and the shapes of the parts of an address.

Times in answers are unix seconds (UTC).
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict

MAX_VERSION = 2**31 - 1  # the database's integer; a larger one cannot exist
MAX_ROW_NUMBER = 2**63 - 1  # likewise, of the ids of events

RowId = Annotated[str, Path(min_length=1, max_length=64)]
EpisodeName = Annotated[
    str, Path(min_length=1, max_length=200, description="An episode's id, a client's name for it, or a completion's id")
]
VersionId = Annotated[int, Path(ge=0, le=MAX_VERSION, description="A weight version")]
PageSize = Annotated[int, Query(ge=1, le=500)]
NumberCursor = Annotated[int | None, Query(ge=0, le=MAX_VERSION, description="`next_cursor` of the page before")]
EventCursor = Annotated[int | None, Query(ge=0, le=MAX_ROW_NUMBER, description="`next_cursor` of the page before")]
Cursor = Annotated[str | None, Query(max_length=200, description="`next_cursor` of the page before")]


class Body(BaseModel):
    """A request body: no unknown fields, no silent conversions ("1" is not 1)."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Answer(BaseModel):
    """An answer body. Only what is declared here leaves the server."""

    model_config = ConfigDict(frozen=True)
