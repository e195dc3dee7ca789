"""Which reward is far from what was given before.

A value is an outlier when both hold:

- its modified z-score (Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993: 0.6745 |x - median| / MAD) is
  above ``threshold``;
- it is the first of its kind: no value before was as far from the median on its side. What was held back as an outlier
  is among these values, so what happens again is usual by then, and a source that changes as a whole is followed.

Where the MAD is 0, more than half of the values are the same: these are answers such as yes and no, not measurements,
and the rarer answer is none. The first success behind a hundred failures is what is to be learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_NORMAL_MAD = 0.6745


@dataclass(frozen=True, slots=True)
class OutlierRule:
    """``window``: how many values before are looked at; with fewer than ``min_history`` nothing is an outlier."""

    threshold: float = 3.5
    min_history: int = 100
    window: int = 200

    def is_outlier(self, value: float, history: Sequence[float]) -> bool:
        if len(history) < self.min_history:
            return False
        before = np.asarray(history[-self.window :], np.float64)
        median = float(np.median(before))
        mad = float(np.median(np.abs(before - median)))
        is_first = value > before.max() or value < before.min()
        return mad > 0 and is_first and _NORMAL_MAD * abs(value - median) / mad > self.threshold
