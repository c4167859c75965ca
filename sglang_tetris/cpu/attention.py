"""Attention over ``Rows`` with AMX tiles, for bfloat16 keys and values: ``cpu_kernel`` is its oracle.

One task per row and KV head. 32 keys at a time are the left factor of a product with the queries
that share the head, then their weights the left factor of one with the values; keys that stand
together in the pool are read where they are, others by way of a small buffer. Weights are rounded
to bfloat16 for the second product, sums are float32. What a key adds depends on its place in the
row's order and on nothing else, so a row has the same bits in any batch, as there.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import prange

from sglang_tetris.cpu import instructions as amx
from sglang_tetris.cpu.arithmetic import exponential
from sglang_tetris.cpu.instructions import to_bfloat16

KEYS = 32  # at a time
AHEAD = 2 * KEYS  # how far before their use keys are fetched
_VALUES = 64  # columns of the values, at a time: four sums
_FLOATS = 16  # that a register holds

_clear0, _clear1, _clear2, _clear3 = amx.clear[:4]
_load4, _load5, _load6 = amx.load[4:7]
_store0, _store1, _store2, _store3 = amx.store[:4]
_score_low = amx.multiply_add(0, 4, 6)
_score_high = amx.multiply_add(1, 5, 6)
_mix0, _mix1, _mix2, _mix3 = (amx.multiply_add(into, 4, 5) for into in range(4))


@numba.njit(nogil=True, cache=True, inline="always")
def _slot(prefix: Any, num_prefix: Any, extra: Any, key: Any) -> Any:
    """Return where the row's ``key``-th key stands in the pool."""
    return np.int64(prefix[key]) if key < num_prefix else extra[key - num_prefix]


@numba.njit(nogil=True, cache=True)
def _stand_together(prefix: Any, num_prefix: Any, first: Any) -> Any:
    """Whether ``KEYS`` keys from ``first`` on exist in the prefix and are neighbours in the pool."""
    if first + KEYS > num_prefix:
        return False
    distances = 0
    for j in range(KEYS - 1):
        distances |= (prefix[first + j + 1] - prefix[first + j]) ^ 1
    return distances == 0


@numba.njit(nogil=True, cache=True)
def _fetch(
    buffer: Any, stride: Any, prefix: Any, num_prefix: Any, extra: Any, first: Any, num_keys: Any,
    row_bytes: Any,
) -> None:  # fmt: skip
    """Have the processor fetch ``KEYS`` rows that will be read soon."""
    for key in range(first, min(first + KEYS, num_keys)):
        row = buffer + _slot(prefix, num_prefix, extra, key) * stride
        for line in range(0, row_bytes, 64):
            amx.prefetch(row + line)


@numba.njit(nogil=True, cache=True)
def _score(
    query: Any, lanes: Any, keys: Any, stride: Any, values: Any, value_stride: Any,
    value_bytes: Any, prefix: Any, num_prefix: Any, extra: Any, num_keys: Any, scores: Any,
    packed: Any, copy: Any,
) -> None:  # fmt: skip
    """Write the dot products [num_keys, lanes] of the queries [at most lanes, head_dim]."""
    pairs = query.view(np.uint32)
    num_blocks = pairs.shape[1] // 16
    for block in range(num_blocks):
        for r in range(16):
            for n in range(lanes):
                here = block * 16 + r
                packed[here * lanes + n] = pairs[n, here] if n < pairs.shape[0] else np.uint32(0)
    row_bytes = lanes * 4
    to = scores.ctypes.data
    width = query.shape[1] * 2
    for first in range(0, num_keys, KEYS):
        _fetch(keys, stride, prefix, num_prefix, extra, first + AHEAD, num_keys, width)
        _fetch(values, value_stride, prefix, num_prefix, extra, first, num_keys, value_bytes)
        if _stand_together(prefix, num_prefix, first):
            address, distance = keys + np.int64(prefix[first]) * stride, stride
        else:
            address, distance = copy, width
            for j in range(min(KEYS, num_keys - first)):
                key = keys + _slot(prefix, num_prefix, extra, first + j) * stride
                for line in range(0, width, 64):
                    amx.copy_line(key + line, copy + j * width + line)
        _clear0()
        _clear1()
        for block in range(num_blocks):
            _load6(packed.ctypes.data + block * 16 * row_bytes, row_bytes)
            _load4(address + 64 * block, distance)
            _score_low()
            _load5(address + 16 * distance + 64 * block, distance)
            _score_high()
        _store0(to + first * row_bytes, row_bytes)
        _store1(to + (first + 16) * row_bytes, row_bytes)


@numba.njit(nogil=True, cache=True)
def _normalise(scores: Any, lanes: Any, num_keys: Any, scale: Any, peaks: Any, totals: Any) -> None:
    """Make scores weights, up to the ``totals`` by which they are to be divided.

    A register holds the scores of several keys; its lanes come together at the end. Places behind
    the last key get a weight that is too small to count, and their values are 0.
    """
    end = -(-num_keys // KEYS) * KEYS * lanes
    for i in range(num_keys * lanes, end):
        scores[i] = -np.inf
    for k in range(_FLOATS):
        peaks[k] = scores[k]
        totals[k] = 0
    for start in range(0, end, 2 * _FLOATS):
        here = scores[start : start + 2 * _FLOATS]
        for k in range(_FLOATS):
            more = here[k] if here[k] > here[k + _FLOATS] else here[k + _FLOATS]
            peaks[k] = more if more > peaks[k] else peaks[k]
    for n in range(lanes):
        for k in range(n, _FLOATS, lanes):
            peaks[n] = max(peaks[n], peaks[k])
        for k in range(n, _FLOATS, lanes):
            peaks[k] = peaks[n]
    for start in range(0, end, 2 * _FLOATS):
        here = scores[start : start + 2 * _FLOATS]
        for k in range(_FLOATS):
            one = exponential((here[k] - peaks[k]) * scale)
            other = exponential((here[k + _FLOATS] - peaks[k]) * scale)
            here[k] = one
            here[k + _FLOATS] = other
            totals[k] += one + other
    for n in range(lanes):
        for k in range(n + lanes, _FLOATS, lanes):
            totals[n] += totals[k]


@numba.njit(nogil=True, cache=True)
def _mix(
    scores: Any, lanes: Any, group: Any, values: Any, stride: Any, prefix: Any, num_prefix: Any,
    extra: Any, num_keys: Any, sums: Any, weights: Any, packed: Any, nothing: Any,
) -> None:  # fmt: skip
    """Write the weighted sums [group, _VALUES] of the values at the address ``values``."""
    _clear0()
    _clear1()
    _clear2()
    _clear3()
    to = packed.ctypes.data
    for first in range(0, num_keys, KEYS):
        for j in range(KEYS):
            for n in range(group):
                weights[n, j] = to_bfloat16(scores[(first + j) * lanes + n])
        for r in range(16):
            key = first + 2 * r
            even = odd = nothing
            if key < num_keys:
                even = values + _slot(prefix, num_prefix, extra, key) * stride
            if key + 1 < num_keys:
                odd = values + _slot(prefix, num_prefix, extra, key + 1) * stride
            amx.interleave(even, odd, to + r * 256)
            amx.interleave(even + 64, odd + 64, to + r * 256 + 128)
        _load4(weights.ctypes.data, 64)
        _load5(to, 256)
        _mix0()
        _load5(to + 64, 256)
        _mix1()
        _load5(to + 128, 256)
        _mix2()
        _load5(to + 192, 256)
        _mix3()
    _store0(sums.ctypes.data, 256)
    _store1(sums.ctypes.data + 64, 256)
    _store2(sums.ctypes.data + 128, 256)
    _store3(sums.ctypes.data + 192, 256)


def num_scores(num_keys: int, lanes: int) -> int:
    """Return how many scores ``attend`` keeps for a row of so many keys."""
    return -(-num_keys // KEYS) * KEYS * lanes


def configurations(group: int) -> tuple[int, np.ndarray[Any, np.dtype[np.uint8]]]:
    """Return how many lanes ``group`` queries take, and the tiles' shapes for scores and sums."""
    lanes = next(lanes for lanes in (4, 8, 16) if lanes >= min(group, 16))
    scoring = amx.configuration((16,) * 8, (4 * lanes,) * 4 + (64, 64) + (4 * lanes,) * 2)
    rows = min(group, 16)
    mixing = amx.configuration((rows,) * 5 + (16,) * 3)
    return lanes, np.stack((scoring, mixing))


@numba.njit(parallel=True, nogil=True, cache=True)
def attend(
    query: Any,  # [num_rows, num_heads, head_dim] uint16, the bits of bfloat16, as all below
    keys: Any,  # address of [num_slots, num_kv_heads, head_dim]
    values: Any,  # address of [num_slots, num_kv_heads, value_dim]
    num_kv_heads: Any,
    req_to_token: Any,  # [num_requests, row_width] int32
    request: Any,  # the four fields of Rows
    prefix_len: Any,
    extra_indptr: Any,
    extra_slots: Any,
    scale: Any,
    lanes: Any,  # as ``configurations`` says
    tiles: Any,
    scores: Any,  # [num_threads, at least the most keys, rounded up to KEYS, * lanes] float32
    out: Any,  # [num_rows, num_heads, value_dim] uint16
) -> None:
    num_rows, num_heads, head_dim = query.shape
    value_dim = out.shape[2]
    group = num_heads // num_kv_heads
    num_threads = scores.shape[0]
    num_tasks = num_rows * num_kv_heads
    for thread in prange(num_threads):
        packed_query = np.empty(head_dim // 2 * lanes, np.uint32)
        packed_values = np.empty((16, _VALUES), np.uint32)
        copy = np.empty((KEYS, head_dim), np.uint16)
        nothing = np.zeros(_VALUES, np.uint16)
        weights = np.zeros((16, KEYS), np.uint16)
        sums = np.empty((16, _VALUES), np.float32)
        peaks = np.empty(_FLOATS, np.float32)
        totals = np.empty(_FLOATS, np.float32)
        first_task = thread * num_tasks // num_threads
        for task in range(first_task, (thread + 1) * num_tasks // num_threads):
            row, kv_head = task // num_kv_heads, task % num_kv_heads
            prefix = req_to_token[request[row]]
            num_prefix = prefix_len[row]
            extra = extra_slots[extra_indptr[row] : extra_indptr[row + 1]]
            num_keys = num_prefix + extra.shape[0]
            for start in range(0, group, lanes):
                count = min(lanes, group - start)
                head = kv_head * group + start
                amx.configure(tiles[0].ctypes.data)
                _score(
                    query[row, head : head + count], lanes,
                    keys + kv_head * head_dim * 2, num_kv_heads * head_dim * 2,
                    values + kv_head * value_dim * 2, num_kv_heads * value_dim * 2, value_dim * 2,
                    prefix, num_prefix, extra, num_keys, scores[thread], packed_query,
                    copy.ctypes.data,
                )  # fmt: skip
                _normalise(scores[thread], lanes, num_keys, scale, peaks, totals)
                amx.configure(tiles[1].ctypes.data)
                for column in range(0, value_dim, _VALUES):
                    _mix(
                        scores[thread], lanes, count,
                        values + (kv_head * value_dim + column) * 2, num_kv_heads * value_dim * 2,
                        prefix, num_prefix, extra, num_keys, sums, weights, packed_values,
                        nothing.ctypes.data,
                    )  # fmt: skip
                    for n in range(count):
                        for d in range(_VALUES):
                            out[row, head + n, column + d] = to_bfloat16(sums[n, d] / totals[n])
        amx.release()
