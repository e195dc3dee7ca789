"""Spans and JSON keep exactly what they were given."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from online_agent.store.encoding import pack_spans, to_json, unpack_spans
from online_agent.types import Span, SpanKind, VersionRun

_INT32 = st.integers(-(2**31), 2**31 - 1)
_FLOAT32 = st.floats(width=32, allow_nan=True, allow_infinity=True)


@st.composite
def _spans(draw: st.DrawFn) -> Span:
    """Any span, also one that does not line up: it must be kept as it came."""
    logprobs = draw(st.none() | st.lists(_FLOAT32, max_size=5))
    runs = draw(st.lists(st.tuples(_INT32, _INT32, _INT32), max_size=3))
    return Span(
        kind=draw(st.sampled_from(SpanKind)),
        turn=draw(st.integers(0, 50)),
        token_ids=np.array(draw(st.lists(_INT32, max_size=5)), np.int32),
        logprobs=None if logprobs is None else np.array(logprobs, np.float32),
        version_runs=tuple(VersionRun(*run) for run in runs),
    )


@given(st.lists(_spans(), max_size=5))
def test_spans_come_back_bit_for_bit(spans: list[Span]) -> None:
    index, token_ids, logprobs = pack_spans(spans)
    read = unpack_spans(json.loads(to_json(index)), token_ids, logprobs)
    assert len(read) == len(spans)
    for got, given_span in zip(read, spans, strict=True):
        assert (got.kind, got.turn, got.version_runs) == (given_span.kind, given_span.turn, given_span.version_runs)
        assert got.token_ids.tobytes() == given_span.token_ids.tobytes()
        assert (got.logprobs is None) == (given_span.logprobs is None)
        if got.logprobs is not None and given_span.logprobs is not None:
            assert got.logprobs.tobytes() == given_span.logprobs.tobytes()


def test_the_blobs_are_little_endian_int32_and_float32() -> None:
    span = Span(
        SpanKind.ACTION, 0, np.array([1, 258], np.int32), np.array([-1.0, -0.5], np.float32), (VersionRun(7, 0, 2),)
    )
    index, token_ids, logprobs = pack_spans([span])
    assert token_ids == b"\x01\x00\x00\x00\x02\x01\x00\x00"
    assert logprobs == b"\x00\x00\x80\xbf\x00\x00\x00\xbf"
    assert index == [["action", 0, 2, 2, [[7, 0, 2]]]]


def test_ids_of_another_dtype_are_stored_as_int32() -> None:
    _, token_ids, _ = pack_spans([Span(SpanKind.PROMPT, 0, np.array([3], np.int64))])  # type: ignore[arg-type]
    assert token_ids == b"\x03\x00\x00\x00"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(_JSON)
def test_any_json_value_comes_back_and_is_plain_ascii(value: Any) -> None:
    text = to_json(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert "\x00" not in text


def test_what_json_cannot_write_becomes_a_word_or_is_refused() -> None:
    value = {"a": math.nan, "b": (math.inf, -math.inf), "c": np.float32(0.5), "d": np.int64(3), "e": np.float64("nan")}
    assert json.loads(to_json(value)) == {"a": "nan", "b": ["inf", "-inf"], "c": 0.5, "d": 3, "e": "nan"}
    with pytest.raises(TypeError, match="set is not JSON"):
        to_json({"a": {1}})
