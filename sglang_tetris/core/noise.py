"""The one random number behind each token: a function of who asks and where, of nothing else.

A row's number depends on its request's seed and on the position of the row's input token. So a
token is drawn with the same number whether its row was verified or decoded, early or late,
alone or among others; and two rows of one request share a number only if they stand at the same
position, of which at most one is on the accepted path. The generator is SplitMix64 (Steele, Lea
and Flood, OOPSLA 2014) with the position as its counter; integers only, so every device agrees.
"""

from __future__ import annotations

import torch

_GAMMA = 0x9E3779B97F4A7C15  # SplitMix64's increment
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_MASK = (1 << 64) - 1
_UNIFORM_BITS = 53  # a float64 holds so many


def uniforms(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return one number in [0, 1) per row, float64, from int64 seeds and positions [num_rows]."""
    counter = (positions.long() + 1) * _signed(_GAMMA)
    mixed = _mix(_mix(seeds.long()) + counter)
    return _shift_right(mixed, 64 - _UNIFORM_BITS).double() * 2.0**-_UNIFORM_BITS


def next_seed(seed: int) -> int:
    """Return the seed of the sample after the one with ``seed``, a signed 64-bit integer."""
    mixed = (seed + _GAMMA) & _MASK
    for factor, shift in zip((*_FACTORS, 1), _SHIFTS, strict=True):
        mixed = ((mixed ^ (mixed >> shift)) * factor) & _MASK
    return _signed(mixed)


def _mix(bits: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser on the 64 bits of an int64 tensor; products wrap around."""
    for factor, shift in zip((*_FACTORS, 1), _SHIFTS, strict=True):
        bits = (bits ^ _shift_right(bits, shift)) * _signed(factor)
    return bits


def _shift_right(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Shift zeros in, as for an unsigned integer."""
    return (bits >> count) & ((1 << (64 - count)) - 1)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits
