"""The highest rate that is kept."""

from __future__ import annotations

from collections.abc import Callable

FIRST_STEP = 1.5
PRECISION = 0.05
BACK_OFF = 0.93
MAX_CONFIRMATIONS = 8


def highest_rate(keeps: Callable[[float], bool], start: float) -> float:
    """The highest rate for which ``keeps`` is true, within 5 %, by steps from ``start`` and halving; 0 for none.

    ``keeps`` is taken for monotone: what is kept at one rate is kept at all lower ones.
    """
    low, high = 0.0, 0.0
    rate = start
    while not low or not high:
        if keeps(rate):
            low, rate = rate, rate * FIRST_STEP
        else:
            high, rate = rate, rate / FIRST_STEP
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
