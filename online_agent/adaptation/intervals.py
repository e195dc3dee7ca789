"""Success rates with the interval that says how far to trust them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

# The 97.5 % point of the normal distribution: two-sided 95 %.
Z_95 = 1.959963984540054


def wilson_interval(num_successes: int, n: int, z: float = Z_95) -> tuple[float, float]:
    """(low, high) of the Wilson score interval of a proportion; (0, 1) when n is 0, since nothing is known then.

    Source: E. B. Wilson, Probable Inference, 1927. Stays inside [0, 1] and is never empty, also at 0 and n successes.
    Raises ValueError unless 0 <= num_successes <= n.
    """
    if not 0 <= num_successes <= n:
        raise ValueError(f"successes must lie in [0, n], got {num_successes} of {n}")
    if n == 0:
        return 0.0, 1.0
    share = num_successes / n
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # At 0 and n successes one end is the share itself; rounding must not put it on the wrong side.
    return max(0.0, min(share, (centre - spread) / scale)), min(1.0, max(share, (centre + spread) / scale))


@dataclass(frozen=True, slots=True)
class Rate:
    """``num_successes`` of ``n`` episodes with the Wilson 95 % interval; rate and interval are None when n is 0."""

    n: int
    num_successes: int
    rate: float | None
    low: float | None
    high: float | None


def success_rate(outcomes: Iterable[bool]) -> Rate:
    """The rate over some episodes."""
    results = [bool(outcome) for outcome in outcomes]
    n, num_successes = len(results), sum(results)
    if n == 0:
        return Rate(0, 0, None, None, None)
    return Rate(n, num_successes, num_successes / n, *wilson_interval(num_successes, n))
