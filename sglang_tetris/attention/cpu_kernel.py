"""Attention over ``Rows`` on a CPU: one task per row and KV head, reading the paged KV in place.

A row's result depends on its query and on its keys in their order, on nothing else: not on
the other rows, their number, the thread that runs it, or on whether a key came from the
prefix or from the extra slots. That is what makes greedy text independent of the batch.
Numba compiles the kernel once per KV dtype and caches it on disk.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from numba import prange
from numba.core import types
from numba.extending import intrinsic, overload

from sglang_tetris.attention.rows import Rows

BLOCK = 64  # keys whose dot products are computed side by side


@intrinsic
def _float_of_bits(_typing: Any, bits: Any) -> Any:
    """Return the float32 with these 32 bits (NumPy's view, which Numba lacks for scalars)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.uint32), codegen


def _widen(value: Any) -> Any:
    """Return a KV element as float32; uint16 holds the bits of a bfloat16."""
    raise NotImplementedError("only callable from compiled code")


@overload(_widen, inline="always")
def _widen_overload(value: Any) -> Any:
    def from_bfloat16(value: Any) -> Any:
        return _float_of_bits(np.uint32(np.uint32(value) << np.uint32(16)))

    def from_float32(value: Any) -> Any:
        return value

    return {types.uint16: from_bfloat16, types.float32: from_float32}.get(value)


# NOTE: no fastmath. Numba may run a freshly compiled kernel and one from its cache through
# different numbers of optimiser passes; only operations done as written have the same bits in
# both (tests/unit/attention measure it). The loops are shaped to vectorise all the same.
@numba.njit(parallel=True, nogil=True, cache=True)
def _attend(
    query: Any,  # [num_rows, num_heads, head_dim] float32
    keys: Any,  # [num_slots, num_kv_heads, head_dim] float32, or uint16 for bfloat16
    values: Any,  # [num_slots, num_kv_heads, value_dim], likewise
    req_to_token: Any,  # [num_requests, row_width] int32
    request: Any,  # the four fields of Rows
    prefix_len: Any,
    extra_indptr: Any,
    extra_slots: Any,
    scale: Any,
    out: Any,  # [num_rows, num_heads, value_dim] float32
) -> None:
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads, value_dim = values.shape[1], values.shape[2]
    group = num_heads // num_kv_heads
    for task in prange(num_rows * num_kv_heads):
        row = task // num_kv_heads
        kv_head = task % num_kv_heads
        num_prefix = prefix_len[row]
        extra_start = extra_indptr[row]
        num_keys = num_prefix + extra_indptr[row + 1] - extra_start
        # One slot list first, so that a key is treated alike wherever it came from.
        slots = np.empty(num_keys, np.int64)
        for j in range(num_prefix):
            slots[j] = req_to_token[request[row], j]
        for j in range(num_prefix, num_keys):
            slots[j] = extra_slots[extra_start + j - num_prefix]

        weights = np.empty((group, num_keys), np.float32)
        block = np.zeros((head_dim, BLOCK), np.float32)  # keys, transposed: a lane per key
        dots = np.empty(BLOCK, np.float32)
        for start in range(0, num_keys, BLOCK):
            num_block = min(BLOCK, num_keys - start)
            for j in range(num_block):
                key = keys[slots[start + j], kv_head]
                for d in range(head_dim):
                    block[d, j] = _widen(key[d])
            for g in range(group):
                head = query[row, kv_head * group + g]
                dots[:] = 0
                for d in range(head_dim):
                    for j in range(BLOCK):
                        dots[j] += head[d] * block[d, j]
                for j in range(num_block):
                    weights[g, start + j] = dots[j] * scale

        for g in range(group):
            peak = np.float32(-np.inf)
            for j in range(num_keys):
                peak = max(peak, weights[g, j])
            total = np.float32(0.0)
            for j in range(num_keys):
                weights[g, j] = np.exp(weights[g, j] - peak)
                total += weights[g, j]
            for j in range(num_keys):
                weights[g, j] /= total

        mixed = np.zeros((group, value_dim), np.float32)
        for j in range(num_keys):
            value = values[slots[j], kv_head]
            for g in range(group):
                weight = weights[g, j]
                for d in range(value_dim):
                    mixed[g, d] += weight * _widen(value[d])
        for g in range(group):
            for d in range(value_dim):
                out[row, kv_head * group + g, d] = mixed[g, d]


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: Rows,
    scale: float,
) -> torch.Tensor:
    """Return softmax attention of every row over its keys, in the query's dtype.

    ``query`` is [num_rows, num_heads, head_dim]; ``keys`` and ``values`` are whole KV buffers
    [num_slots, num_kv_heads, head_dim] in bfloat16 or float32. Sums are float32.
    """
    out = torch.empty((*query.shape[:2], values.shape[2]), dtype=torch.float32)
    _attend(
        query.float().contiguous().numpy(),
        _as_numpy(keys),
        _as_numpy(values),
        req_to_token.numpy(),
        rows.request.numpy(),
        rows.prefix_len.numpy(),
        rows.extra_indptr.numpy(),
        rows.extra_slots.numpy(),
        np.float32(scale),
        out.numpy(),
    )
    return out.to(query.dtype)


def set_num_threads(num_threads: int) -> None:
    """Use as many threads as torch does, within what Numba was started with."""
    numba.set_num_threads(max(1, min(num_threads, numba.config.NUMBA_NUM_THREADS)))


def _as_numpy(buffer: torch.Tensor) -> Any:
    """Return the KV buffer as a NumPy view: bfloat16, which NumPy lacks, as its bits."""
    if buffer.dtype == torch.bfloat16:
        return buffer.view(torch.uint16).numpy()
    assert buffer.dtype == torch.float32, f"KV dtype {buffer.dtype} was refused at start-up"
    return buffer.numpy()
