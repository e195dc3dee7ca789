"""What travels between the host and the first process of a jail.

In: one marshalled (argv, files, collect). Out: records of kind, path and content, parsed here without trust, since
the job had the same user as the process that wrote them.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MARSHAL_VERSION = 2  # read by every Python 3
MAX_JOB_BYTES = 16 << 20
RECORD = struct.Struct(">cII")  # kind, bytes of path, bytes of content


@dataclass(slots=True)
class Leftovers:
    """What a job left in its working directory. ``skipped``: too large, not text, or no regular file."""

    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


def encode_job(argv: Sequence[str], files: Mapping[str, str], collect: bool) -> bytes:
    """The job as the loader reads it. Raises ValueError for a job that is too large or has unusable paths."""
    if not argv:
        raise ValueError("argv is empty")
    for path in files:
        if path.startswith("/") or not path or any(part in ("", ".", "..") for part in path.split("/")):
            raise ValueError(f"file path {path!r} does not stay in the working directory")
    contents = {path: text.encode() for path, text in files.items()}
    body = marshal.dumps((list(argv), contents, collect), MARSHAL_VERSION)
    if len(body) > MAX_JOB_BYTES:
        raise ValueError(f"job of {len(body)} bytes is over the limit of {MAX_JOB_BYTES}")
    return body


def parse_leftovers(data: bytes) -> Leftovers | None:
    """The files left behind. None where the closing record is missing: the job got in the way of their collection."""
    found = Leftovers()
    at = 0
    while at + RECORD.size <= len(data):
        kind, path_bytes, content_bytes = RECORD.unpack_from(data, at)
        at += RECORD.size
        path = data[at : at + path_bytes].decode("utf-8", "replace")
        content = data[at + path_bytes : at + path_bytes + content_bytes]
        at += path_bytes + content_bytes
        if kind == b"E":
            if path:
                found.skipped.append("(more files than the limit)")
            return found
        _keep(found, kind, path, content)
    return None


def _keep(found: Leftovers, kind: bytes, path: str, content: bytes) -> None:
    if kind == b"L":
        found.links[path] = content.decode("utf-8", "replace")
        return
    try:
        text = content.decode("utf-8") if kind == b"F" else None
    except UnicodeDecodeError:
        text = None
    if text is None:
        found.skipped.append(path)
    else:
        found.files[path] = text
