"""Micro-batches that pad little."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from online_agent.learner.buckets import MICRO_BATCH_COST_TOKENS, least_padded


def cost_of_the_best_of_all_cuts(lengths, max_tokens):
    """The least of padded tokens plus the cost of each micro-batch, by trying every cut."""
    found = []
    for cuts in itertools.product((False, True), repeat=len(lengths) - 1):
        edges = [0, *(at + 1 for at, is_cut in enumerate(cuts) if is_cut), len(lengths)]
        batches = list(itertools.pairwise(edges))
        sizes = [(end - begin) * lengths[begin] for begin, end in batches]
        if all(size <= max_tokens or end - begin == 1 for size, (begin, end) in zip(sizes, batches, strict=True)):
            found.append(sum(sizes) + MICRO_BATCH_COST_TOKENS * len(sizes))
    return min(found)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=9), st.integers(1, 1000))
def test_no_other_cut_pads_less(lengths, max_tokens):
    lengths = sorted(lengths, reverse=True)

    batches = least_padded(range(len(lengths)), lengths, max_tokens)

    assert [i for rows in batches for i in rows] == list(range(len(lengths)))
    ours = sum(len(rows) * lengths[rows[0]] + MICRO_BATCH_COST_TOKENS for rows in batches)
    assert ours == cost_of_the_best_of_all_cuts(lengths, max_tokens)


def test_rows_of_very_different_length_are_not_padded_to_each_other():
    assert least_padded([3, 2, 1, 0], [110, 120, 390, 400], 4096) == [(3, 2), (1, 0)]


def test_rows_of_like_length_share_a_micro_batch_though_one_is_padded_a_little():
    assert least_padded([0, 1, 2], [120, 110, 100], 4096) == [(0, 1, 2)]


def test_a_row_longer_than_the_budget_stands_alone():
    assert least_padded([0, 1, 2], [50, 20, 20], 40) == [(0,), (1, 2)]
