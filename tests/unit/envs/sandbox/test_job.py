"""What travels into and out of a jail."""

from __future__ import annotations

import marshal
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.sandbox.job import Leftovers, encode_job, parse_leftovers

END = b"E" + struct.pack(">II", 0, 0)


def record(kind: bytes, path: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">II", len(path), len(content)) + path + content


def test_job_is_readable_by_any_python() -> None:
    assert marshal.loads(encode_job(["sh", "-c", "x"], {"a/b": "é"}, True)) == (
        ["sh", "-c", "x"],
        {"a/b": b"\xc3\xa9"},
        True,
    )


def test_job_without_a_program_is_refused() -> None:
    with pytest.raises(ValueError, match="argv is empty"):
        encode_job([], {}, False)


def test_leftovers_are_sorted_by_what_they_are() -> None:
    data = (
        record(b"F", b"a", b"text") + record(b"F", b"b", b"\xff") + record(b"L", b"c", b"/") + record(b"S", b"d", b"")
    )
    assert parse_leftovers(data + END) == Leftovers({"a": "text"}, {"c": "/"}, ["b", "d"])


def test_leftovers_over_the_limit_say_so() -> None:
    assert parse_leftovers(record(b"E", b"overflow", b"")) == Leftovers(skipped=["(more files than the limit)"])


@pytest.mark.parametrize("data", [b"", b"F", record(b"F", b"a", b"text"), record(b"F", b"a", b"text")[:-2]])
def test_leftovers_without_their_end_are_none(data: bytes) -> None:
    assert parse_leftovers(data) is None


@given(st.binary(max_size=200))
def test_any_bytes_can_be_parsed(data: bytes) -> None:
    found = parse_leftovers(data)
    assert found is None or b"E" in data
