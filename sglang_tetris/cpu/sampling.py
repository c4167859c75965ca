"""``core.sampling.draw`` on a CPU, without sorting a vocabulary.

A row's probabilities are read twice: once for the largest, once to gather the few tokens that can
survive its filters. Those are binned by the upper bits of the float, which order it, and only the
bin in which a filter cuts is sorted. Each row is one task and knows no other, so its token does
not depend on the batch.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from numba import prange

from sglang_tetris.core.sampling import Filters, largest

_BIN_SHIFT = 18  # leaves sign, exponent and 5 bits of the mantissa: bins 3 percent wide
_NUM_BINS = (0x3F800000 >> _BIN_SHIFT) + 1  # up to the bits of 1.0
_BLOCK = 16
_MOST_TOP_P = 0.9999  # above it, what is to be cut is as small as the rounding


def draw(logits: torch.Tensor, filters: Filters, numbers: torch.Tensor) -> torch.Tensor:
    """Return one token id per row, [num_rows] int64; see ``core.sampling.draw``."""
    is_greedy = filters.is_greedy
    if bool(is_greedy.all()):
        return largest(logits)
    if bool(is_greedy.any()):
        token_ids = largest(logits)
        sampled = ~is_greedy
        token_ids[sampled] = draw(logits[sampled], filters.of_rows(sampled), numbers[sampled])
        return token_ids
    probs = filters.scale(logits).softmax(dim=-1)
    token_ids = torch.empty(logits.shape[0], dtype=torch.int64)
    _draw(
        probs.numpy(),
        filters.top_ks.long().numpy(),
        filters.top_ps.double().numpy(),
        filters.min_ps.numpy(),
        numbers.numpy(),
        token_ids.numpy(),
    )
    no_mass = token_ids < 0
    if bool(no_mass.any()):
        token_ids[no_mass] = largest(logits[no_mass])
    return token_ids


# NOTE: no fastmath, as in attention/cpu_kernel.py: fresh and cached code must agree.
@numba.njit(parallel=True, nogil=True, cache=True)
def _draw(
    probs: Any,  # [num_rows, vocab_size] float32
    top_ks: Any,
    top_ps: Any,
    min_ps: Any,
    numbers: Any,
    token_ids: Any,  # [num_rows] int64, written; -1 where a row has no mass
) -> None:
    for row in prange(probs.shape[0]):
        token_ids[row] = _draw_row(probs[row], top_ks[row], top_ps[row], min_ps[row], numbers[row])


@numba.njit(nogil=True, cache=True)
def _draw_row(probs: Any, top_k: Any, top_p: Any, min_p: Any, number: Any) -> Any:
    if probs[0] != probs[0]:
        return -1  # one bad logit makes a NaN of a softmax's every number
    vocab_size = probs.shape[0]
    bits = probs.view(np.int32)  # in the order of the floats, as none is negative
    token_ids = np.empty(vocab_size, np.int32)
    if top_k >= vocab_size and top_p >= 1.0 and min_p <= 0.0:
        for i in range(vocab_size):
            token_ids[i] = i
        return _invert(probs, token_ids, number)
    if top_p >= 1.0:
        top_p = np.inf  # the probabilities' own sum is 1 up to rounding only
    largest_of = _block_maxima(bits)
    floor = _floor(largest_of, vocab_size, top_k, top_p, min_p)
    token_ids = token_ids[: _gather(bits, largest_of, floor, token_ids)]
    cut, last = _cut(probs, bits, token_ids, top_k, top_p)
    num_kept = 0
    for i in token_ids:
        token_ids[num_kept] = i
        num_kept += bits[i] > cut or (bits[i] == cut and i <= last)
    return _invert(probs, token_ids[:num_kept], number)


@numba.njit(nogil=True, cache=True)
def _block_maxima(bits: Any) -> Any:
    """Return the largest of every ``_BLOCK`` tokens, as bits: the loop that reads everything."""
    num_whole = bits.shape[0] // _BLOCK
    largest_of = np.zeros(num_whole + 1, np.int32)
    for block in range(num_whole):
        most = np.int32(0)
        for i in range(_BLOCK):
            most = max(most, bits[block * _BLOCK + i])
        largest_of[block] = most
    for i in range(num_whole * _BLOCK, bits.shape[0]):
        largest_of[num_whole] = max(largest_of[num_whole], bits[i])
    return largest_of


@numba.njit(nogil=True, cache=True)
def _floor(largest_of: Any, vocab_size: Any, top_k: Any, top_p: Any, min_p: Any) -> Any:
    """Return the bits of a probability below which no token stays."""
    floor = np.zeros(1, np.float32)
    if top_p < _MOST_TOP_P:
        # All tokens below the mean of the mass to be cut have less than that mass together.
        # Half of it, for the rounding in the probabilities' own sum: up to 2e-5, measured.
        floor[0] = 0.5 * (1.0 - top_p) / vocab_size
    if min_p > 0.0:
        most = np.full(1, largest_of.max()).view(np.float32)[0]
        floor[0] = max(floor[0], most * min_p)
    least = floor.view(np.int32)[0]
    if top_k < largest_of.shape[0]:
        # So many blocks hold a token this probable: as many tokens are.
        kth = largest_of.shape[0] - top_k
        least = max(least, np.partition(largest_of, kth)[kth])
    return least


@numba.njit(nogil=True, cache=True)
def _gather(bits: Any, largest_of: Any, floor: Any, token_ids: Any) -> Any:
    """Write the ids of the tokens with at least ``floor``, rising, and return how many."""
    count = 0
    for block in range(largest_of.shape[0]):
        if largest_of[block] >= floor:
            for i in range(block * _BLOCK, min(bits.shape[0], (block + 1) * _BLOCK)):
                token_ids[count] = i
                count += bits[i] >= floor
    return count


@numba.njit(nogil=True, cache=True)
def _cut(probs: Any, bits: Any, token_ids: Any, top_k: Any, top_p: Any) -> tuple[Any, Any]:
    """Return the last token that stays, in falling order, as its probability's bits and its id.

    An id of -1 says that no token with these very bits stays.
    """
    counts = np.zeros(_NUM_BINS, np.int64)
    masses = np.zeros(_NUM_BINS, np.float64)
    for i in token_ids:
        counts[bits[i] >> _BIN_SHIFT] += 1
        masses[bits[i] >> _BIN_SHIFT] += probs[i]

    rank = 0
    before = 0.0
    for here in range(_NUM_BINS - 1, -1, -1):
        if rank + counts[here] <= top_k and before + masses[here] <= top_p:
            rank += counts[here]
            before += masses[here]
            continue
        members = token_ids[(bits[token_ids] >> _BIN_SHIFT) == here]
        cut, last = np.int64(((here + 1) << _BIN_SHIFT) - 1), np.int64(-1)  # all bins above
        for i in members[np.argsort(-probs[members], kind="mergesort")]:  # equals by rising id
            if rank >= top_k or before > top_p:
                break
            cut, last = np.int64(bits[i]), np.int64(i)
            rank += 1
            before += probs[i]
        return cut, last
    return -1, -1


@numba.njit(nogil=True, cache=True)
def _invert(probs: Any, token_ids: Any, number: Any) -> Any:
    """Return the first of ``token_ids`` up to which there is more than ``number`` of the mass."""
    total = 0.0
    for i in token_ids:
        total += probs[i]
    target = number * total
    mass = 0.0
    for i in token_ids:
        mass += probs[i]
        if mass > target:
            return i
    return -1  # no mass at all
