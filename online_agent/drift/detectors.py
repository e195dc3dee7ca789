"""ADWIN and Page-Hinkley over a bounded window of values.

Detectors are rebuilt from the window each time: what is stored is plain numbers, and a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from river.drift import ADWIN, PageHinkley

# A drop of 0.1 is tolerated for ever; one of 0.4 alarms after about 40 episodes.
PAGE_HINKLEY_DELTA = 0.1
PAGE_HINKLEY_THRESHOLD = 12.0
# Fewer values on one side of a change point say nothing.
_MIN_SIDE = 5


class _Detector(Protocol):
    @property
    def drift_detected(self) -> bool: ...

    def update(self, x: float) -> object: ...


def adwin_fires(values: Sequence[float], *, delta: float, min_values: int) -> bool:
    """Whether ADWIN finds two parts of the window with different means, at confidence 1 - ``delta``."""
    return _fires(ADWIN(delta=delta, clock=1, grace_period=min_values), values)  # type: ignore[no-untyped-call]


def page_hinkley_fires(values: Sequence[float], *, min_values: int) -> bool:
    """Whether the mean fell: the cumulated deficit against the running mean exceeds the threshold."""
    detector = PageHinkley(
        min_instances=min_values, delta=PAGE_HINKLEY_DELTA, threshold=PAGE_HINKLEY_THRESHOLD, mode="down"
    )
    return _fires(detector, values)


def _fires(detector: _Detector, values: Sequence[float]) -> bool:
    for value in values:
        detector.update(value)
        if detector.drift_detected:
            return True
    return False


def change_point(values: Sequence[float]) -> int:
    """The k for which the means of values[:k] and values[k:] explain most of the variance (least squares)."""
    x = np.asarray(values, np.float64)
    num = len(x)
    if num < 2 * _MIN_SIDE:
        return num // 2
    k = np.arange(_MIN_SIDE, num - _MIN_SIDE + 1)
    head = np.cumsum(x)[k - 1]
    gap = head / k - (x.sum() - head) / (num - k)
    return int(k[np.argmax(k * (num - k) * gap**2)])
