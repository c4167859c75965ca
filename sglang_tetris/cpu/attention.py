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
def _pack_queries(query: Any, lanes: Any, packed: Any) -> None:
    """Write the queries of a KV head, [at most lanes, head_dim], as right factors of 32 rows."""
    pairs = query.view(np.uint32)
    for r in range(pairs.shape[1]):
        for n in range(lanes):
            packed[r * lanes + n] = pairs[n, r] if n < pairs.shape[0] else np.uint32(0)


@numba.njit(nogil=True, cache=True)
def _score(
    packed: Any, lanes: Any, head_dim: Any, keys: Any, stride: Any, prefix: Any, num_prefix: Any,
    extra: Any, num_keys: Any, scores: Any, copy: Any,
) -> None:  # fmt: skip
    """Write the dot products [num_heads, num_keys, lanes] of the packed queries [num_heads, ...]."""
    num_heads = packed.shape[0]
    row_bytes = lanes * 4
    width = head_dim * 2
    for first in range(0, num_keys, KEYS):
        together = _stand_together(prefix, num_prefix, first)
        if together:
            address, distance = keys + np.int64(prefix[first]) * stride, stride
        else:
            ahead = first + AHEAD
            _fetch(keys, stride, prefix, num_prefix, extra, ahead, num_keys, num_heads * width)
            address, distance = copy, width
        for head in range(num_heads):
            if not together:
                for j in range(min(KEYS, num_keys - first)):
                    key = keys + _slot(prefix, num_prefix, extra, first + j) * stride + head * width
                    for line in range(0, width, 64):
                        amx.copy_line(key + line, copy + j * width + line)
            queries = packed[head].ctypes.data
            _clear0()
            _clear1()
            for offset in range(0, width, 64):
                _load6(queries, row_bytes)
                _load4(address + offset, distance)
                _score_low()
                _load5(address + 16 * distance + offset, distance)
                _score_high()
                queries += 16 * row_bytes
            to = scores[head].ctypes.data + first * row_bytes
            _store0(to, row_bytes)
            _store1(to + 16 * row_bytes, row_bytes)
            if together:
                address += width


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
        if _stand_together(prefix, num_prefix, first):
            even = values + np.int64(prefix[first]) * stride
            for r in range(16):
                amx.interleave(even, even + stride, to + r * 256)
                amx.interleave(even + 64, even + stride + 64, to + r * 256 + 128)
                even += 2 * stride
        else:
            _fetch(values, stride, prefix, num_prefix, extra, first + AHEAD, num_keys, 128)
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
    scores: Any,  # [num_threads, num_kv_heads, at least ``num_scores``] float32, for its own use
    out: Any,  # [num_rows, num_heads, value_dim] uint16
) -> None:
    num_rows, num_heads, head_dim = query.shape
    value_dim = out.shape[2]
    group = num_heads // num_kv_heads
    num_threads = scores.shape[0]
    key_stride, value_stride = num_kv_heads * head_dim * 2, num_kv_heads * value_dim * 2
    # The heads of a token stand together, so they are read together unless threads would idle.
    task_heads = num_kv_heads if num_rows >= 4 * num_threads else 1
    tasks_per_row = num_kv_heads // task_heads
    num_tasks = num_rows * tasks_per_row
    for thread in prange(num_threads):
        packed_queries = np.empty((task_heads, head_dim // 2 * lanes), np.uint32)
        packed_values = np.empty((16, _VALUES), np.uint32)
        copy = np.empty((KEYS, head_dim), np.uint16)
        nothing = np.zeros(_VALUES, np.uint16)
        weights = np.zeros((16, KEYS), np.uint16)
        sums = np.empty((16, _VALUES), np.float32)
        peaks = np.empty(_FLOATS, np.float32)
        totals = np.empty(_FLOATS, np.float32)
        first_task = thread * num_tasks // num_threads
        for task in range(first_task, (thread + 1) * num_tasks // num_threads):
            row = task // tasks_per_row
            first_head = task % tasks_per_row * task_heads
            prefix = req_to_token[request[row]]
            num_prefix = prefix_len[row]
            extra = extra_slots[extra_indptr[row] : extra_indptr[row + 1]]
            num_keys = num_prefix + extra.shape[0]
            for start in range(0, group, lanes):
                count = min(lanes, group - start)
                for head in range(task_heads):
                    place = (first_head + head) * group + start
                    _pack_queries(query[row, place : place + count], lanes, packed_queries[head])
                amx.configure(tiles[0].ctypes.data)
                _score(
                    packed_queries, lanes, head_dim, keys + first_head * head_dim * 2, key_stride,
                    prefix, num_prefix, extra, num_keys, scores[thread], copy.ctypes.data,
                )  # fmt: skip
                amx.configure(tiles[1].ctypes.data)
                for head in range(task_heads):
                    of_head = scores[thread, head]
                    _normalise(of_head, lanes, num_keys, scale, peaks, totals)
                    place = (first_head + head) * group + start
                    for column in range(0, value_dim, _VALUES):
                        _mix(
                            of_head, lanes, count,
                            values + ((first_head + head) * value_dim + column) * 2, value_stride,
                            prefix, num_prefix, extra, num_keys, sums, weights, packed_values,
                            nothing.ctypes.data,
                        )  # fmt: skip
                        for n in range(count):
                            for d in range(_VALUES):
                                mixed = sums[n, d] / totals[n]
                                out[row, place + n, column + d] = to_bfloat16(mixed)
        amx.release()
