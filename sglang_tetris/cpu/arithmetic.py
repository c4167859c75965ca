"""Arithmetic on single numbers for compiled loops, shaped so that the loops vectorise."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from sglang_tetris.cpu.instructions import from_bits, to_bits

_LOG2_E = np.float32(1.4426950408889634)
_ROUND = np.float32(12582912.0)  # 1.5 * 2**23: adding it leaves an integer in the low bits
_LEAST = np.float32(-126.0)
# 2**r for -0.5 <= r <= 0.5 by its series: within 2e-7
_C1, _C2, _C3, _C4, _C5, _C6 = (
    np.float32(np.log(2) ** n / factorial)
    for n, factorial in ((1, 1), (2, 2), (3, 6), (4, 24), (5, 120), (6, 720))
)


@numba.njit(nogil=True, cache=True, inline="always")
def exponential(x: Any) -> Any:
    """Return e**x for x <= 0 in float32 within 1e-5, at least 2**-126; NaN for NaN."""
    power = x * _LOG2_E
    power = _LEAST if power < _LEAST else power
    shifted = power + _ROUND
    rest = power - (shifted - _ROUND)
    series = np.float32(1) + rest * (
        _C1 + rest * (_C2 + rest * (_C3 + rest * (_C4 + rest * (_C5 + rest * _C6))))
    )
    return series * from_bits((to_bits(shifted) + np.uint32(127)) << np.uint32(23))


@numba.njit(nogil=True, cache=True, inline="always")
def to_float32(bits: Any) -> Any:
    """Return the number that a bfloat16's 16 bits stand for."""
    return from_bits(np.uint32(bits) << np.uint32(16))
