"""A generation sampled in two pieces is one generation."""

import numpy as np
import pytest

from online_agent.agent.generations import join
from online_agent.types import Generation, Span, SpanKind, VersionRun


def piece(ids, runs, *, finish="abort", prompt=4, cached=0, retractions=0, misalignment=None, experts=None):
    logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32)
    ids = np.array(ids, np.int32)
    return Generation(ids, logprobs, tuple(runs), finish, prompt, cached, retractions, misalignment, experts)


def test_tokens_log_probs_and_versions_are_laid_end_to_end():
    first = piece([10, 11, 12], [VersionRun(3, 0, 1), VersionRun(4, 1, 3)], cached=2, retractions=1)
    second = piece([13, 14], [VersionRun(5, 0, 2)], finish="stop", prompt=7, cached=6, retractions=1)

    joined = join(first, second)

    assert joined.token_ids.tolist() == [10, 11, 12, 13, 14]
    assert joined.logprobs.tolist() == [-1, -2, -3, -1, -2]
    assert joined.version_runs == (VersionRun(3, 0, 1), VersionRun(4, 1, 3), VersionRun(5, 3, 5))
    assert (joined.finish_reason, joined.num_prompt_tokens, joined.num_cached_tokens) == ("stop", 4, 2)
    assert joined.num_retractions == 2
    Span(SpanKind.ACTION, 0, joined.token_ids, joined.logprobs, joined.version_runs).check()


def test_the_same_version_on_both_sides_is_one_run():
    joined = join(piece([1, 2], [VersionRun(3, 0, 2)]), piece([3], [VersionRun(3, 0, 1)]))
    assert joined.version_runs == (VersionRun(3, 0, 3),)


@pytest.mark.parametrize("order", [1, -1])
def test_a_piece_without_tokens_changes_nothing(order):
    some, none = piece([1, 2], [VersionRun(3, 0, 2)]), piece([], [])
    joined = join(*(some, none)[::order])
    assert joined.token_ids.tolist() == [1, 2]
    assert joined.version_runs == (VersionRun(3, 0, 2),)


def test_what_does_not_line_up_in_either_piece_is_said():
    wrong = piece([1], [VersionRun(3, 0, 1)], misalignment="null")
    right = piece([2], [VersionRun(3, 0, 1)])
    assert join(wrong, right).misalignment == join(right, wrong).misalignment == "null"


def test_each_token_keeps_the_experts_it_was_sampled_with():
    """The first piece covers 4 prompt and 1 of 2 sampled tokens, the second the other one and 1 of its own 2."""
    chosen_then = np.full((5, 1, 1), 1, np.uint8)
    chosen_later = np.full((2, 1, 1), 2, np.uint8)
    first = piece([1, 2], [VersionRun(3, 0, 2)], experts=chosen_then)
    second = piece([3, 4], [VersionRun(4, 0, 2)], prompt=6, experts=chosen_later)

    assert join(first, second).routed_experts[:, 0, 0].tolist() == [1] * 5 + [2] * 2
    assert join(first, piece([3], [VersionRun(4, 0, 1)])).routed_experts is None
    assert join(piece([1], [VersionRun(3, 0, 1)]), second).routed_experts is None
    assert join(piece([], []), second).routed_experts is second.routed_experts
