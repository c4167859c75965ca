"""Products with a weight that is packed for AMX: the same bits for a row in any batch.

A weight [num_outputs, width] is stored in panels of 32 outputs. A panel is a run of blocks of 32
inputs, and a block two tiles of 16 outputs, each with two neighbouring inputs side by side, as the
instruction wants its right factor. So a product reads its weight once and in order, which is all it
costs while rows are few: what oneDNN's own packing takes longer for, and ``linear`` twice as long
(benchmarks/bench_cpu_step.py). A sum runs over the blocks in order, whatever the number of rows.
"""

from __future__ import annotations

import functools
from typing import Any

import numba
import numpy as np
import torch
from numba import prange

from sglang_tetris.cpu import instructions as amx
from sglang_tetris.cpu.arithmetic import exponential, to_float32
from sglang_tetris.cpu.instructions import bfloat16_at, to_bfloat16

PANEL = 32  # outputs, and inputs per block
MOST_ROWS = 32  # at once: two tiles of rows by two of outputs are the four sums
WRITE, ADD, GATE = 0, 1, 2  # what ``multiply`` does with a product
_TILE_BYTES = 16 * 64
_BLOCK_BYTES = 2 * _TILE_BYTES
_AHEAD_BYTES = 4096  # the next page, where the processor's own prefetcher stops

# Sums 0..3 are (rows, outputs) = (low, low), (low, high), (high, low), (high, high); the tiles
# behind them the rows' and the weight's.
_ROWS_LOW, _ROWS_HIGH, _WEIGHT_LOW, _WEIGHT_HIGH = 4, 5, 6, 7
_SUMS = ((0, 4, 6), (1, 4, 7), (2, 5, 6), (3, 5, 7))
_clear0, _clear1, _clear2, _clear3 = amx.clear[:4]
_store0, _store1, _store2, _store3 = amx.store[:4]
_load_rows_low, _load_rows_high, _load_weight_low, _load_weight_high = amx.load[4:]
_add0, _add1, _add2, _add3 = (amx.multiply_add(*sum_) for sum_ in _SUMS)


def _configurations() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the tile configuration for every number of rows from 0 to ``MOST_ROWS``."""
    found = [amx.configuration((1,) * amx.NUM_TILES)]
    for num_rows in range(1, MOST_ROWS + 1):
        low, high = min(num_rows, 16), max(num_rows - 16, 1)
        found.append(amx.configuration((low, low, high, high, low, high, 16, 16)))
    return np.stack(found)


CONFIGURATIONS = _configurations()


@functools.cache
def has_tiles() -> bool:
    """Whether this process may use AMX, which Linux grants to those that ask."""
    return bool(torch.cpu.get_capabilities().get("amx_bf16", False)) and torch.cpu._init_amx()


def can_pack(weight: torch.Tensor) -> bool:
    """Whether ``pack`` takes this weight and ``product`` runs on this processor."""
    return (
        has_tiles()
        and weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and weight.dim() == 2
        and all(size % PANEL == 0 and size > 0 for size in weight.shape)
    )


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Return a bfloat16 weight [num_outputs, width] in panels, in the same shape."""
    num_outputs, width = weight.shape
    tiles = weight.reshape(num_outputs // PANEL, 2, 16, width // PANEL, 16, 2)
    return tiles.permute(0, 3, 1, 4, 2, 5).reshape(num_outputs, width)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Undo ``pack``."""
    num_outputs, width = packed.shape
    tiles = packed.reshape(num_outputs // PANEL, width // PANEL, 2, 16, 16, 2)
    return tiles.permute(0, 2, 4, 1, 3, 5).reshape(num_outputs, width)


def product(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """Return ``x @ weight.T``, [num_rows, num_outputs] bfloat16, for ``x`` [num_rows, width]."""
    x = x.contiguous()
    out = torch.empty((x.shape[0], packed.shape[0]), dtype=torch.bfloat16)
    multiply(
        x.data_ptr(), *x.shape, packed.data_ptr(), packed.shape[0], out.data_ptr(), WRITE,
        CONFIGURATIONS, torch.get_num_threads(),
    )  # fmt: skip
    return out


# NOTE: no fastmath, here as in attention/cpu_kernel.py: fresh and cached code must agree.
@numba.njit(nogil=True, cache=True)
def panel_sums(
    x: Any, width: Any, num_rows: Any, panel: Any, configurations: Any, sums: Any
) -> None:
    """Write [num_rows, 32] float32 sums: up to 32 rows at the address ``x`` by one panel."""
    amx.configure(configurations.ctypes.data + amx.CONFIGURATION_BYTES * num_rows)
    stride = width * 2
    end = panel + width // PANEL * _BLOCK_BYTES
    _clear0()
    _clear1()
    if num_rows <= 16:
        while panel < end:
            for line in range(0, _BLOCK_BYTES, 64):
                amx.prefetch(panel + _AHEAD_BYTES + line)
            _load_rows_low(x, stride)
            _load_weight_low(panel, 64)
            _add0()
            _load_weight_high(panel + _TILE_BYTES, 64)
            _add1()
            x += 64
            panel += _BLOCK_BYTES
    else:
        _clear2()
        _clear3()
        high = x + 16 * stride
        while panel < end:
            for line in range(0, _BLOCK_BYTES, 64):
                amx.prefetch(panel + _AHEAD_BYTES + line)
            _load_rows_low(x, stride)
            _load_weight_low(panel, 64)
            _add0()
            _load_weight_high(panel + _TILE_BYTES, 64)
            _add1()
            _load_rows_high(high, stride)
            _add2()
            _add3()
            x += 64
            high += 64
            panel += _BLOCK_BYTES
        _store2(sums + 16 * 128, 128)
        _store3(sums + 16 * 128 + 64, 128)
    _store0(sums, 128)
    _store1(sums + 64, 128)


@numba.njit(nogil=True, cache=True)
def share(thread: Any, num_threads: Any, num_items: Any) -> Any:
    """Return where a thread's share of the items begins; the next thread's is where it ends."""
    return thread * num_items // num_threads


@numba.njit(nogil=True, cache=True, inline="always")
def swish(gate: Any) -> Any:
    """Return gate * sigmoid(gate)."""
    e = exponential(-abs(gate))
    return gate * (np.float32(1) if gate >= 0 else e) / (np.float32(1) + e)


@numba.njit(parallel=True, nogil=True, cache=True)
def multiply(
    x: Any, num_rows: Any, width: Any, weight: Any, num_outputs: Any, out: Any, kind: Any,
    configurations: Any, num_threads: Any,
) -> None:  # fmt: skip
    """Write, add to ``out`` or gate ``x @ weight.T``.

    ``x``, ``weight`` and ``out`` are addresses of bfloat16 [num_rows, width], [num_outputs, width] in
    panels and [num_rows, num_outputs]. To gate, ``weight`` is twice as high: swish(x @ upper half)
    * (x @ lower half).
    """
    panel_bytes = width * PANEL * 2
    num_panels = num_outputs // PANEL
    for thread in prange(num_threads):
        sums = np.empty((MOST_ROWS, PANEL), np.float32)
        others = np.empty((MOST_ROWS, PANEL), np.float32)
        for panel in range(
            share(thread, num_threads, num_panels), share(thread + 1, num_threads, num_panels)
        ):
            of_panel = weight + panel * panel_bytes
            for start in range(0, num_rows, MOST_ROWS):
                count = min(MOST_ROWS, num_rows - start)
                rows = x + start * width * 2
                panel_sums(rows, width, count, of_panel, configurations, sums.ctypes.data)
                if kind == GATE:
                    other = of_panel + num_panels * panel_bytes
                    panel_sums(rows, width, count, other, configurations, others.ctypes.data)
                for row in range(count):
                    here = out + ((start + row) * num_outputs + panel * PANEL) * 2
                    target = numba.carray(bfloat16_at(here), PANEL)
                    if kind == WRITE:
                        for k in range(PANEL):
                            target[k] = to_bfloat16(sums[row, k])
                    elif kind == ADD:
                        for k in range(PANEL):
                            addend = to_float32(to_bfloat16(sums[row, k]))
                            target[k] = to_bfloat16(to_float32(target[k]) + addend)
                    else:
                        for k in range(PANEL):
                            target[k] = to_bfloat16(swish(sums[row, k]) * others[row, k])
        amx.release()
