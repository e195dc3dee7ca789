"""Which reward is far from what its source, or the person, gave before.

A value is an outlier when both hold:

- its modified z-score (Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993: 0.6745 |x - median| / MAD;
  |x - median| / (1.2533 mean absolute deviation) where the MAD is 0) is above ``threshold``;
- of the values before, at most the share ``max_share`` was as far from the median on its side.

The second keeps what is merely the rarer of two answers: thumbs down among thumbs up is no outlier while it happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_NORMAL_MAD = 0.6745
_NORMAL_MEAN_DEVIATION = 1.2533


@dataclass(frozen=True, slots=True)
class OutlierRule:
    """``window``: how many values before are looked at; with fewer than ``min_history`` nothing is an outlier."""

    threshold: float = 3.5
    max_share: float = 0.01
    min_history: int = 30
    window: int = 200

    def is_outlier(self, value: float, history: Sequence[float]) -> bool:
        if len(history) < self.min_history:
            return False
        before = np.asarray(history[-self.window :], np.float64)
        median = float(np.median(before))
        deviations = np.abs(before - median)
        distance = abs(value - median)
        if distance == 0:
            return False
        is_as_far = (deviations >= distance) & ((before - median) * (value - median) > 0)
        return bool(is_as_far.mean() <= self.max_share) and _score(distance, deviations) > self.threshold


def _score(distance: float, deviations: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    mad = float(np.median(deviations))
    if mad > 0:
        return _NORMAL_MAD * distance / mad
    mean = float(deviations.mean())
    return distance / (_NORMAL_MEAN_DEVIATION * mean) if mean > 0 else np.inf
