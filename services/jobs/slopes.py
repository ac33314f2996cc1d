"""How fast a series grows, and how sure that is: Theil–Sen's slope with its interval. Pure.

The median of the slopes between all pairs of points: a burst or a garbage collection moves it
little, where least squares would follow it. Source: P. K. Sen, "Estimates of the regression
coefficient based on Kendall's tau", JASA 63 (1968), 1379-1389; the interval is his, by the normal
approximation of Kendall's score. Neighbouring samples of a process resemble each other, so that the
interval is somewhat narrower than the truth: the limits of a soak leave room for that.
"""

import math
from dataclasses import dataclass
from itertools import combinations

POINTS_MIN = 8
"""Fewer give no interval worth the name."""
POINTS_MAX = 400
"""80,000 pairs; more points are thinned evenly."""
Z_95 = 1.959964
"""97.5 % quantile of the normal distribution: two-sided 95 %."""


@dataclass(frozen=True)
class Slope:
    """Units of the series per unit of time; `low` and `high` bound it with 95 % confidence."""

    value: float
    low: float
    high: float


def theil_sen(times: list[float], values: list[float]) -> Slope:
    """The slope of `values` over ascending `times`. Raises ValueError below POINTS_MIN points."""
    if len(times) != len(values):
        raise ValueError(f"{len(times)} times, {len(values)} values")
    if len(times) < POINTS_MIN:
        raise ValueError(f"{len(times)} points, at least {POINTS_MIN} are needed")
    step = math.ceil(len(times) / POINTS_MAX)
    points = list(zip(times[::step], values[::step], strict=True))
    slopes = sorted(
        (late[1] - early[1]) / (late[0] - early[0])
        for early, late in combinations(points, 2)
        if late[0] > early[0]
    )
    count, pairs = len(points), len(slopes)
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    reach = Z_95 * deviation
    low = max(0, math.floor((pairs - reach) / 2))
    high = min(pairs - 1, math.ceil((pairs + reach) / 2))
    return Slope(_median(slopes), slopes[low], slopes[high])


def _median(ordered: list[float]) -> float:
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2
