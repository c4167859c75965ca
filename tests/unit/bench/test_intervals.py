"""Intervals contain the truth as often as they say; that is what they are for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sglang_tetris.bench.intervals import (
    Interval,
    Pair,
    geometric_mean,
    paired_ratio,
    unpaired_ratio,
)

NOISE = 0.03  # of the logarithm of a throughput
PARTS = ((120, 4.0), (60, 9.0), (200, 2.0))  # tokens and seconds: the parts differ, as chats do


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


def pairs_of(ours: list[float], theirs: list[float]) -> list[Pair]:
    """Return pairs of the same work with these throughputs."""
    return [Pair(0, 100, 100 / a, 100, 100 / b) for a, b in zip(ours, theirs, strict=True)]


def noisy_pairs(draw: np.random.Generator, num_parts: int, num_held: int) -> list[Pair]:
    """Return measurements of an arm that needs 0.8 times the other's seconds for the same tokens,
    on a machine that is slow at times for both."""
    pairs = []
    for part in range(num_parts):
        tokens, seconds = PARTS[part % len(PARTS)]
        for _ in range(num_held):
            drift, ours, theirs = np.exp(draw.normal(0, (0.2, NOISE, NOISE)))
            pairs.append(
                Pair(part, tokens, 0.8 * seconds * drift * ours, tokens, seconds * drift * theirs)
            )
    return pairs


def test_an_interval_by_hand() -> None:
    ratio, low, high = paired_ratio(pairs_of([110.0, 121.0, 132.0], [100.0, 110.0, 120.0]))
    assert (ratio, low, high) == pytest.approx((1.1, 1.1, 1.1))

    # Seconds 1 and 3 against 2 and 2: shares 1/4 - 1/2 and 3/4 - 1/2, so the variance of the sum of
    # two is 2 * (2 * 0.25 ** 2), and Student's t with one degree of freedom is 12.7062.
    ratio, low, high = paired_ratio([Pair(0, 10, 1.0, 10, 2.0), Pair(0, 10, 3.0, 10, 2.0)])
    assert ratio == pytest.approx(1.0)
    assert low == pytest.approx(math.exp(-12.7062 * 0.5), rel=1e-4)
    assert high == pytest.approx(math.exp(12.7062 * 0.5), rel=1e-4)


def test_the_ratio_is_that_of_the_totals() -> None:
    pairs = [Pair(0, 30, 2.0, 10, 2.0), Pair(1, 10, 5.0, 50, 6.0), Pair(1, 20, 1.0, 40, 3.0)]

    assert paired_ratio(pairs).estimate == pytest.approx((60 / 8) / (100 / 11))


def test_pairs_cancel_what_both_suffered() -> None:
    drift = [100.0, 50.0, 80.0]
    ours = [1.2 * speed for speed in drift]

    paired, unpaired = paired_ratio(pairs_of(ours, drift)), unpaired_ratio(ours, drift)

    assert paired == pytest.approx((1.2, 1.2, 1.2))
    assert unpaired.estimate == pytest.approx(1.2)
    assert unpaired.low is not None
    assert unpaired.low < 1


def test_what_differs_between_parts_is_no_noise() -> None:
    """Speculation helps one chat and hurts another, each time alike."""
    once = [Pair(0, 10, 1.0, 10, 2.0), Pair(1, 10, 3.0, 10, 2.0)]

    ratio, low, high = paired_ratio(once * 2)
    assert (ratio, low, high) == pytest.approx((1.0, 1.0, 1.0))
    _, low, high = paired_ratio(once)  # which of both it is, one lap cannot tell
    assert low is not None
    assert high is not None
    assert low < 0.5 < 2 < high


def test_one_measurement_has_no_interval() -> None:
    for interval in (
        paired_ratio(pairs_of([3.0], [2.0])),
        unpaired_ratio([3.0], [2.0, 2.0]),
        geometric_mean([1.5]),
    ):
        assert interval.estimate == pytest.approx(1.5)
        assert interval[1:] == (None, None)


def test_no_noise_is_no_width() -> None:
    assert unpaired_ratio([3.0, 3.0], [2.0, 2.0]) == pytest.approx((1.5, 1.5, 1.5))
    assert geometric_mean([2.0] * 9) == pytest.approx((2.0, 2.0, 2.0))


@pytest.mark.parametrize("num_repeats", [2, 3, 5, 12])
def test_student_s_interval_covers_the_truth(num_repeats: int) -> None:
    intervals = [geometric_mean(list(sample)) for sample in samples(num_repeats, 2000)]

    assert coverage(intervals, 100) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(("num_parts", "num_held"), [(1, 3), (1, 12), (5, 3), (8, 3), (3, 2)])
def test_the_interval_of_a_ratio_covers_the_truth(num_parts: int, num_held: int) -> None:
    draw = np.random.default_rng(num_parts * 100 + num_held)

    intervals = [paired_ratio(noisy_pairs(draw, num_parts, num_held)) for _ in range(2000)]

    assert coverage(intervals, 1 / 0.8) == pytest.approx(0.95, abs=0.025)


def test_parts_held_once_give_an_interval_that_is_not_far_off() -> None:
    """Here all parts gain alike, so that nothing but noise widens it, and they weigh unequally."""
    draw = np.random.default_rng(7)

    intervals = [paired_ratio(noisy_pairs(draw, 8, 1)) for _ in range(1000)]

    assert 0.9 <= coverage(intervals, 1 / 0.8) < 0.95


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
