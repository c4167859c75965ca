"""How sure a ratio of two throughputs is, from a few repeats.

Repeats are few (3 to 10) and each costs minutes. A bootstrap resamples what it has: with three
pairs there are ten different resamples, and its nominal 95 percent interval covers the truth in
about three of four cases (tests/unit/bench/test_intervals.py). Student's t on the logarithms of
the paired ratios is exact for any number of repeats if their noise is log-normal, which
multiplicative slow-downs are close to. So below ``BOOTSTRAP_FROM`` repeats the interval is
Student's, from there on the bias-corrected bootstrap (BCa) of the same mean. A pair is one
repeat: both arms, the same chats, minutes apart on the same machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
BOOTSTRAP_FROM = 10
_NUM_RESAMPLES = 5000


class Interval(NamedTuple):
    """An estimate; the bounds are None where one measurement cannot say."""

    estimate: float
    low: float | None
    high: float | None


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Return the geometric mean of ``ours / theirs``, repeat by repeat, and its interval."""
    return geometric_mean([our / their for our, their in zip(ours, theirs, strict=True)])


def unpaired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """Return the ratio of the geometric means of two separate runs, with Welch's interval."""
    our_logs, their_logs = np.log(ours), np.log(theirs)
    difference = float(our_logs.mean() - their_logs.mean())
    if min(len(ours), len(theirs)) < 2:
        return _exponential(difference, None)
    parts = [logs.var(ddof=1) / len(logs) for logs in (our_logs, their_logs)]
    variance = float(sum(parts))
    if variance == 0:
        return _exponential(difference, 0.0)
    weights = (part**2 / (n - 1) for part, n in zip(parts, (len(ours), len(theirs)), strict=True))
    degrees = variance**2 / float(sum(weights))
    return _exponential(difference, _student(degrees) * variance**0.5)


def geometric_mean(values: Sequence[float]) -> Interval:
    """Return the geometric mean of positive values and its interval."""
    logs = np.log(values)
    mean = float(logs.mean())
    if len(logs) < 2:
        return _exponential(mean, None)
    deviation = float(logs.std(ddof=1))
    if deviation == 0:
        return _exponential(mean, 0.0)
    if len(logs) < BOOTSTRAP_FROM:
        return _exponential(mean, _student(len(logs) - 1) * deviation / len(logs) ** 0.5)
    resampled = stats.bootstrap(
        (logs,),
        np.mean,
        n_resamples=_NUM_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="BCa",
        rng=np.random.default_rng(0),
    ).confidence_interval
    low, high = np.exp([resampled.low, resampled.high])
    return Interval(float(np.exp(mean)), float(low), float(high))


def _student(degrees: float) -> float:
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, degrees))


def _exponential(mean: float, half_width: float | None) -> Interval:
    if half_width is None:
        return Interval(float(np.exp(mean)), None, None)
    low, high = np.exp([mean - half_width, mean + half_width])
    return Interval(float(np.exp(mean)), float(low), float(high))
