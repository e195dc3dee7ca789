"""A body that is not plain, bounded JSON is refused with a message that shows the place; nothing becomes a 500."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.limits import MAX_DEPTH, parse_json
from online_agent.errors import BadInput


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b'{"reward": NaN}', "NaN}"),
        (b'{"reward": -Infinity}', "-Infinity}"),
        (b'{"reward": 1e999}', "1e999}"),
        (b'{"reward": 1', "not valid JSON"),
        (b"", "not valid JSON"),
        (b'"\xff\xfe"', "UTF-8"),
        (b'"\\ud800"', "surrogate"),
        (b'{"a": "x\\u0000y"}', "NUL"),
        (b'{"x\\u0000y": 1}', "NUL"),
        (b'[1, 2.5, null, "x\\u0000y", 3]', "NUL"),
        (b'[1, 2, [3, {"a": ["x\\u0000y"]}]]', "NUL"),
    ],
)
def test_what_json_cannot_say_is_refused_and_shown(content: bytes, shown: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_json(content)
    assert shown in refused.value.message


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def test_nesting_up_to_the_limit_is_read_and_one_more_is_refused() -> None:
    parse_json(nested(MAX_DEPTH))
    with pytest.raises(BadInput, match=f"deeper than {MAX_DEPTH}"):
        parse_json(nested(MAX_DEPTH + 1))


def test_a_hundred_thousand_brackets_do_not_exhaust_the_stack() -> None:
    with pytest.raises(BadInput):
        parse_json(nested(100_000))


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(content: bytes) -> None:
    try:
        parse_json(content)
    except BadInput:
        return
