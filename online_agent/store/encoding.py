"""Values to columns and back: strict JSON text, and the spans of a turn packed into two blobs and an index.

Token ids are int32 little-endian, log-probs float32 little-endian, each laid end to end over the spans of the turn.
The index keeps, for each span, kind, turn, number of ids, number of log-probs (null: none) and version runs, so that
rows that do not line up are kept exactly as they came.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from online_agent.types import Span, SpanKind, VersionRun

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")


def _plain(value: object) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON: {value!r}")


def _name_non_finite(value: Any) -> Any:
    """The same value with NaN and infinities as the words ``nan``, ``inf``, ``-inf``, which JSON cannot write."""
    if isinstance(value, dict):
        return {key: _name_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_name_non_finite(item) for item in value]
    if isinstance(value, np.generic):
        return _name_non_finite(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


_COMPACT = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain)


def to_json(value: Any) -> str:
    """Compact ASCII JSON; non-finite numbers become words. Raises TypeError for what is not JSON."""
    try:
        return _COMPACT.encode(value)
    except ValueError:
        return _COMPACT.encode(_name_non_finite(value))


def pack_spans(spans: Sequence[Span]) -> tuple[list[list[Any]], bytes, bytes]:
    """(index, token ids, log-probs) of a turn."""
    index: list[list[Any]] = []
    token_ids: list[bytes] = []
    logprobs: list[bytes] = []
    for span in spans:
        num_logprobs = None
        if span.logprobs is not None:
            num_logprobs = len(span.logprobs)
            logprobs.append(np.asarray(span.logprobs, _FLOAT32).tobytes())
        runs = [[run.version, run.start, run.end] for run in span.version_runs]
        index.append([span.kind.value, span.turn, len(span.token_ids), num_logprobs, runs])
        token_ids.append(np.asarray(span.token_ids, _INT32).tobytes())
    return index, b"".join(token_ids), b"".join(logprobs)


def unpack_spans(index: Sequence[Sequence[Any]], token_ids: bytes, logprobs: bytes) -> list[Span]:
    """The spans that ``pack_spans`` was given, bit for bit. Arrays are read-only views."""
    ids = np.frombuffer(token_ids, _INT32)
    values = np.frombuffer(logprobs, _FLOAT32)
    spans: list[Span] = []
    ids_at = values_at = 0
    for kind, turn, num_ids, num_logprobs, runs in index:
        span_values = None
        if num_logprobs is not None:
            span_values = values[values_at : values_at + num_logprobs]
            values_at += num_logprobs
        spans.append(
            Span(
                kind=SpanKind(kind),
                turn=turn,
                token_ids=ids[ids_at : ids_at + num_ids],
                logprobs=span_values,
                version_runs=tuple(VersionRun(*run) for run in runs),
            )
        )
        ids_at += num_ids
    return spans
