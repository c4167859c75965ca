"""Intervals contain the truth as often as they say; that is what they are for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sglang_tetris.bench.intervals import (
    BOOTSTRAP_FROM,
    Interval,
    geometric_mean,
    paired_ratio,
    unpaired_ratio,
)

NOISE = 0.03  # of the logarithm of a throughput


def coverage(intervals: list[Interval], truth: float) -> float:
    """Return the share of intervals that contain the truth."""
    inside = [
        i.low is not None and i.high is not None and i.low <= truth <= i.high for i in intervals
    ]
    return sum(inside) / len(inside)


def samples(num_repeats: int, num_trials: int) -> np.ndarray:
    """Return throughputs around 100 with log-normal noise, [trial, repeat]."""
    draws = np.random.default_rng(num_repeats).normal(0, NOISE, (num_trials, num_repeats))
    return np.asarray(100 * np.exp(draws))


def test_an_interval_by_hand() -> None:
    ratio, low, high = paired_ratio([110.0, 121.0, 132.0], [100.0, 110.0, 120.0])
    assert (ratio, low, high) == pytest.approx((1.1, 1.1, 1.1))

    ratio, low, high = paired_ratio([1.0, math.e], [1.0, 1.0])
    assert ratio == pytest.approx(math.exp(0.5))
    assert low == pytest.approx(math.exp(0.5 - 12.7062 / 2), rel=1e-4)  # Student's, one degree
    assert high == pytest.approx(math.exp(0.5 + 12.7062 / 2), rel=1e-4)


def test_pairs_cancel_what_both_suffered() -> None:
    drift = [100.0, 50.0, 80.0]
    ours = [1.2 * speed for speed in drift]

    paired, unpaired = paired_ratio(ours, drift), unpaired_ratio(ours, drift)

    assert paired == pytest.approx((1.2, 1.2, 1.2))
    assert unpaired.estimate == pytest.approx(1.2)
    assert unpaired.low is not None
    assert unpaired.low < 1


def test_one_repeat_has_no_interval() -> None:
    for interval in (paired_ratio([3.0], [2.0]), unpaired_ratio([3.0], [2.0, 2.0])):
        assert interval.estimate == pytest.approx(1.5)
        assert interval[1:] == (None, None)


def test_no_noise_is_no_width() -> None:
    assert unpaired_ratio([3.0, 3.0], [2.0, 2.0]) == pytest.approx((1.5, 1.5, 1.5))
    assert geometric_mean([2.0] * BOOTSTRAP_FROM) == pytest.approx((2.0, 2.0, 2.0))


@pytest.mark.parametrize("num_repeats", [2, 3, 5])
def test_student_s_interval_covers_the_truth(num_repeats: int) -> None:
    intervals = [geometric_mean(list(sample)) for sample in samples(num_repeats, 2000)]

    assert coverage(intervals, 100) == pytest.approx(0.95, abs=0.015)


def test_the_bootstrap_covers_the_truth_where_it_is_used() -> None:
    intervals = [geometric_mean(list(sample)) for sample in samples(BOOTSTRAP_FROM, 150)]

    assert 0.85 <= coverage(intervals, 100) <= 1


def test_a_bootstrap_of_three_would_not() -> None:
    bounds = []
    for sample in samples(3, 200):
        resampled = stats.bootstrap(
            (np.log(sample),), np.mean, n_resamples=500, method="percentile", rng=0
        ).confidence_interval
        bounds.append(Interval(100, math.exp(resampled.low), math.exp(resampled.high)))

    assert coverage(bounds, 100) < 0.85


def test_welch_s_interval_covers_the_truth() -> None:
    ours, theirs = samples(3, 1000), samples(4, 1000)

    intervals = [unpaired_ratio(list(a), list(b)) for a, b in zip(ours, theirs, strict=True)]

    assert coverage(intervals, 1) == pytest.approx(0.95, abs=0.03)
