"""Output is capped in bytes and decoded as one stream."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from envs.sandbox.output import Output


def test_character_cut_by_the_cap_is_replaced() -> None:
    output = Output(4)
    output.add("a€€".encode())
    assert (output.text(), output.is_truncated, output.size) == ("a€", True, 7)
    cut = Output(3)
    cut.add("a€".encode())
    assert cut.text() == "a\ufffd"


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5), st.integers(0, 80))
def test_output_is_the_same_however_it_was_cut(data: bytes, cuts: list[int], max_bytes: int) -> None:
    output = Output(max_bytes)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(places):
        output.add(data[start:end])
    assert output.text() == data[:max_bytes].decode("utf-8", "replace")
    assert output.is_truncated == (len(data) > max_bytes)
