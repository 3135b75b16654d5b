"""From priorities of any size to levels below the best: 0 for the most urgent, larger for less urgent ones.

All normalisers are pure, take the priorities of ONE domain, and give equal priorities equal levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

STEP = 1.25
"""The kernel's own ratio between the weights of two neighbouring nice values."""


def minmax(priorities: Sequence[float], strength: float) -> list[float]:
    """Linear: the best at 0, the worst at `strength`."""
    return _spread(priorities, strength)


def log(priorities: Sequence[float], strength: float) -> list[float]:
    """Linear in the logarithm, for priorities that span orders of magnitude."""
    return _spread(_logarithms(priorities), strength)


def paper(priorities: Sequence[float], strength: float) -> list[float]:
    """CPU shares in proportion to priorities: one level per factor of 1.25, so the spread follows the data.

    Squeezed linearly into `strength` only where it does not fit.
    """
    logs = _logarithms(priorities)
    best = max(logs)
    levels = [(best - value) / math.log(STEP) for value in logs]
    widest = max(levels)
    return levels if widest <= strength else [level * strength / widest for level in levels]


def identity(priorities: Sequence[float], strength: float) -> list[float]:
    """The priority is the level above the worst, as it is: for policies that think in nice levels."""
    best = max(priorities)
    return [min(strength, best - priority) for priority in priorities]


def _spread(values: Sequence[float], strength: float) -> list[float]:
    best, worst = max(values), min(values)
    if best == worst:
        return [0.0] * len(values)
    scale = strength / (best - worst)
    return [(best - value) * scale for value in values]


def _logarithms(priorities: Sequence[float]) -> list[float]:
    """log is undefined at and below 0: then everything is shifted so that the smallest becomes 1."""
    lowest = min(priorities)
    shift = 1.0 - lowest if lowest <= 0 else 0.0
    return [math.log(priority + shift) for priority in priorities]


NORMALISERS: dict[str, Callable[[Sequence[float], float], list[float]]] = {
    "minmax": minmax,
    "log": log,
    "paper": paper,
    "identity": identity,
}
