from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from online_agent.errors import MisalignedEpisode
from online_agent.store.expert_rows import HEADER_BYTES, join_experts, num_covered, pack_experts, unpack_experts
from online_agent.types import RoutedExperts


def rows(num_tokens: int, num_layers: int = 2, num_chosen: int = 2, seed: int = 0) -> RoutedExperts:
    return np.random.default_rng(seed).integers(0, 256, (num_tokens, num_layers, num_chosen)).astype(np.uint8)


def test_the_layout_of_a_blob_is_a_header_and_one_byte_per_choice() -> None:
    blob = pack_experts(np.array([[[3, 255]], [[0, 1]]], np.uint8), first_token=258)
    assert blob == bytes([2, 1, 0, 0, 2, 0, 0, 0, 1, 0, 2, 0]) + bytes([3, 255, 0, 1])


@given(st.integers(0, 40), st.integers(0, 5), st.integers(0, 4), st.integers(0, 2**32 - 1))
def test_what_is_packed_comes_back(num_tokens: int, num_layers: int, num_chosen: int, first_token: int) -> None:
    packed = rows(num_tokens, num_layers, num_chosen)
    first, unpacked = unpack_experts(pack_experts(packed, first_token))
    assert first == first_token
    np.testing.assert_array_equal(unpacked, packed)


def test_experts_beyond_a_byte_are_refused_rather_than_wrapped() -> None:
    with pytest.raises(ValueError, match="uint8"):
        pack_experts(np.full((2, 2, 2), 256, np.uint16), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_a_blob_that_is_not_whole_is_found(cut: int) -> None:
    blob = pack_experts(rows(2), 0)
    with pytest.raises(MisalignedEpisode):
        unpack_experts(blob[:-cut])


def test_the_turns_of_an_episode_join_to_one_row_per_token() -> None:
    whole = rows(9)
    blobs = [pack_experts(whole[:4], 0), pack_experts(whole[4:5], 4), pack_experts(whole[5:8], 5)]
    joined = join_experts(blobs, num_tokens=9, num_needed=8)
    assert joined is not None
    np.testing.assert_array_equal(joined[:8], whole[:8])
    assert not joined[8].any()


def test_a_turn_whose_rows_were_lost_is_made_good_by_the_next_one() -> None:
    whole = rows(9)
    joined = join_experts([pack_experts(whole[:3], 0), None, pack_experts(whole[3:], 3)], 9, 8)
    np.testing.assert_array_equal(joined, whole)


def test_where_turns_overlap_the_first_one_counts() -> None:
    first, second = rows(5, seed=1), rows(6, seed=2)
    joined = join_experts([pack_experts(first, 0), pack_experts(second, 2)], 8, 8)
    assert joined is not None
    np.testing.assert_array_equal(joined, np.concatenate([first, second[3:]]))


@pytest.mark.parametrize(
    "blobs",
    [
        [],
        [None],
        [pack_experts(rows(7), 0)],
        [pack_experts(rows(3), 0), pack_experts(rows(5), 4)],
        [pack_experts(rows(9), 1)],
        [pack_experts(rows(4), 0), pack_experts(rows(8), 4)],
        [pack_experts(rows(4), 0), pack_experts(rows(5, num_layers=3), 4)],
        [pack_experts(rows(9), 0)[:-1]],
    ],
    ids=["none", "null", "the end is missing", "a gap", "the start is missing", "too many", "other layers", "torn"],
)
def test_an_episode_with_a_missing_or_misplaced_row_has_no_experts(blobs: list[bytes | None]) -> None:
    assert join_experts(blobs, num_tokens=9, num_needed=8) is None


@pytest.mark.parametrize(
    ("blobs", "covered"),
    [
        ([], 0),
        ([None], 0),
        ([(0, 3)], 3),
        ([(0, 3), (3, 2)], 5),
        ([(0, 3), None, (2, 4)], 6),
        ([(0, 3), (4, 2)], 3),
        ([None, (1, 5)], 0),
        ([(0, 5), (1, 2)], 5),
    ],
)
def test_tokens_are_covered_up_to_the_first_without_a_row(blobs: list[tuple[int, int] | None], covered: int) -> None:
    packed = [None if blob is None else pack_experts(rows(blob[1]), blob[0]) for blob in blobs]
    assert num_covered([blob and blob[:HEADER_BYTES] for blob in packed]) == covered
