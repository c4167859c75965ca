"""How sure a ratio of two throughputs is, from a few measurements.

Measurements are few and each costs seconds to minutes. A bootstrap resamples what it has: with
three pairs there are ten different resamples, and its nominal 95 percent interval covers the truth
in about three of four cases (tests/unit/bench/test_intervals.py). Student's t is right for any
number if the noise of a logarithm is normal, which multiplicative slow-downs are close to. So all
intervals here are Student's, with the effective degrees of freedom of Welch and Satterthwaite where
variances are added.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """An estimate; the bounds are None where one measurement cannot say."""

    estimate: float
    low: float | None
    high: float | None


class Pair(NamedTuple):
    """Two arms that held the same chats one shortly after the other."""

    part: int  # which chats; the same part, the same work
    our_tokens: int
    our_seconds: float
    their_tokens: int
    their_seconds: float


def paired_ratio(pairs: Sequence[Pair]) -> Interval:
    """Return our throughput over theirs, over all pairs together, and its interval.

    The logarithm of that ratio is a sum of four logarithms of totals. To first order a pair moves
    it by the shares that it has in them, so its variance is the sum of those shares' variances. It
    is taken within each part: what differs between parts is work, not noise. Where some part was
    held once only, all pairs are taken for the same work: too wide an interval where the parts gain
    unequally, and one that covers the truth in about 92 of 100 cases where they gain alike.
    """
    tokens, seconds, their_tokens, their_seconds = (
        np.array(column, dtype=np.float64) for column in list(zip(*pairs, strict=True))[1:]
    )
    estimate = float(
        np.log(tokens.sum() / seconds.sum() * their_seconds.sum() / their_tokens.sum())
    )
    moved = (
        tokens / tokens.sum()
        - seconds / seconds.sum()
        - their_tokens / their_tokens.sum()
        + their_seconds / their_seconds.sum()
    )
    parts = np.array([pair.part for pair in pairs])
    held = [moved[parts == part] for part in np.unique(parts)]
    return _exponential(estimate, _half_width(held if min(map(len, held)) > 1 else [moved]))


def unpaired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Return the ratio of the geometric means of two separate runs' throughputs."""
    our_logs, their_logs = np.log(ours), np.log(theirs)
    means = [logs / len(logs) for logs in (our_logs, their_logs)]
    return _exponential(float(our_logs.mean() - their_logs.mean()), _half_width(means))


def geometric_mean(values: Sequence[float]) -> Interval:
    """Return the geometric mean of positive values and its interval."""
    logs = np.log(values)
    return _exponential(float(logs.mean()), _half_width([logs / len(logs)]))


def _half_width(groups: Sequence[NDArray[np.float64]]) -> float | None:
    """Return the half-width of the interval of the sum over all ``groups``, each of which has a mean
    of its own; None if one of them is a single number."""
    if min(map(len, groups)) < 2:
        return None
    variances = [len(group) * float(group.var(ddof=1)) for group in groups]
    variance = math.fsum(variances)
    if variance == 0:
        return 0.0
    degrees = variance**2 / sum(
        of_group**2 / (len(group) - 1) for of_group, group in zip(variances, groups, strict=True)
    )
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, degrees)) * math.sqrt(variance)


def _exponential(mean: float, half_width: float | None) -> Interval:
    if half_width is None:
        return Interval(float(np.exp(mean)), None, None)
    low, high = np.exp([mean - half_width, mean + half_width])
    return Interval(float(np.exp(mean)), float(low), float(high))
