"""The engine's chosen experts as blobs: rows of a turn packed for its row, and the blobs of an episode put together.

A blob is a header of four little-endian integers (the token its first row belongs to, rows, layers, experts per token;
the last two of 16 bits) followed by one byte per choice, so a mixture of more than 256 experts cannot be stored.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from online_agent.errors import MisalignedEpisode
from online_agent.types import RoutedExperts, TrainingEpisode

_HEADER = struct.Struct("<IIHH")
HEADER_BYTES = _HEADER.size


def pack_experts(rows: RoutedExperts, first_token: int) -> bytes:
    """Rows (T, L, K) of the tokens from ``first_token`` on. Raises ValueError for anything but bytes in three axes."""
    if rows.dtype != np.uint8 or rows.ndim != 3:
        raise ValueError(f"experts must be uint8 (T, L, K), not {rows.dtype} of shape {rows.shape}")
    return _HEADER.pack(first_token, *rows.shape) + np.ascontiguousarray(rows).tobytes()


def unpack_experts(blob: bytes) -> tuple[int, RoutedExperts]:
    """(first token, rows) as they were packed. Raises MisalignedEpisode for a blob that is not whole."""
    if len(blob) < _HEADER.size:
        raise MisalignedEpisode(f"a blob of experts has {len(blob)} bytes: the header alone is {_HEADER.size}")
    first_token, num_rows, num_layers, num_chosen = _HEADER.unpack_from(blob)
    if len(blob) - _HEADER.size != num_rows * num_layers * num_chosen:
        shape = (num_rows, num_layers, num_chosen)
        raise MisalignedEpisode(f"a blob of experts has {len(blob) - _HEADER.size} bytes for shape {shape}")
    flat: npt.NDArray[np.uint8] = np.frombuffer(blob, np.uint8, offset=_HEADER.size)
    return first_token, flat.reshape(num_rows, num_layers, num_chosen)


def num_covered(headers: Sequence[bytes | None]) -> int:
    """How many tokens from the first on have a row, by the first ``HEADER_BYTES`` of the blobs of their turns."""
    covered = 0
    for header in headers:
        if header is not None:
            first_token, num_rows, _, _ = _HEADER.unpack_from(header)
            if first_token <= covered:
                covered = max(covered, first_token + num_rows)
    return covered


def experts_of(episode: TrainingEpisode, blobs: Sequence[bytes | None]) -> RoutedExperts | None:
    """Those of every token that an action was sampled behind, so of all tokens before the last action; else None.

    ``blobs`` are those of the turns that the row is laid out from.
    """
    if all(blob is None for blob in blobs):
        return None
    last_action = int(np.flatnonzero(episode.action_mask)[-1])
    return join_experts(blobs, len(episode.token_ids), num_needed=last_action)


def join_experts(blobs: Sequence[bytes | None], num_tokens: int, num_needed: int) -> RoutedExperts | None:
    """(``num_tokens``, L, K) the experts of an episode from those of its turns; zeros behind the last row.

    Where blobs overlap the first one counts: it holds what the token's own turn was computed with. None when any of
    the first ``num_needed`` tokens has no row, rows go beyond the episode, shapes differ or a blob is not whole.
    """
    joined: RoutedExperts | None = None
    covered = 0
    for blob in blobs:
        if blob is None:
            continue
        try:
            first_token, rows = unpack_experts(blob)
        except MisalignedEpisode:
            return None
        if joined is None:
            joined = np.zeros((num_tokens, *rows.shape[1:]), np.uint8)
        end = first_token + len(rows)
        if first_token > covered or end > num_tokens or rows.shape[1:] != joined.shape[1:]:
            return None
        joined[covered:end] = rows[covered - first_token :]
        covered = max(covered, end)
    return joined if covered >= num_needed else None
