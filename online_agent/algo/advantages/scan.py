"""Discounted sums towards the end of each segment, in log2(longest segment) vector passes."""

from __future__ import annotations

from torch import Tensor


def discounted_suffix_sums(x_N: Tensor, decay_N: Tensor, longest: int) -> Tensor:
    """(N,) y with y_k = x_k + decay_k * y_{k+1}; ``decay_k = 0`` ends a segment at k.

    Recursive doubling: after the pass with span s, y_k holds the first 2s terms of its sum. Only products of decays
    are formed, never quotients, so decay 1 is exact and long segments neither overflow nor lose digits.
    Work N log2(longest); ``longest`` is the number of elements in the longest segment.
    """
    y_N, reach = x_N.clone(), decay_N
    num, span = x_N.shape[0], 1
    while span < longest:
        ahead = reach[: num - span] * y_N[span:]
        y_N[: num - span] += ahead
        reach = reach[: num - 2 * span] * reach[span : num - span] if num > 2 * span else reach[:0]
        span *= 2
    return y_N
