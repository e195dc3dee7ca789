"""The highest rate that is kept."""

from __future__ import annotations

from collections.abc import Callable

WIDE_STEP, NEAR_STEP = 1.5, 1.1
"""How far the search goes at first where the limit is unknown, and where an earlier one found it near."""
PRECISION = 0.05
BACK_OFF = 0.93
MAX_CONFIRMATIONS = 8


def highest_rate(keeps: Callable[[float], bool], start: float, step: float = WIDE_STEP) -> float:
    """The highest rate for which ``keeps`` is true, within 5 %, by steps from ``start`` and halving; 0 for none.

    ``keeps`` is taken for monotone: what is kept at one rate is kept at all lower ones.
    """
    low, high = 0.0, 0.0
    rate = start
    while not low or not high:
        if keeps(rate):
            low, rate = rate, rate * step
        else:
            high, rate = rate, rate / step
        if rate < 1:
            return 0.0
    while high / low > 1 + PRECISION:
        middle = (low * high) ** 0.5
        if keeps(middle):
            low = middle
        else:
            high = middle
    return low


def confirmed_rate(keeps_long: Callable[[float], bool], candidate: float) -> float:
    """The first of eight rates that is kept for the whole time, from ``candidate`` down by 7 % each; 0 for none."""
    rate = candidate
    for _ in range(MAX_CONFIRMATIONS):
        if rate >= 1 and keeps_long(rate):
            return rate
        rate *= BACK_OFF
    return 0.0
