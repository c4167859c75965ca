"""The decoder layers of a Llama as one compiled call: what stands between two products costs little.

Called layer by layer from Python, the 30 layers of the demo target take longer between their
products than in them (benchmarks/bench_cpu_step.py). Here everything from the first norm to the last
residual runs without returning to Python. Activations are bfloat16 and rounded where the published
model rounds them, sums are float32; each row is computed alone, so it has the same bits in any batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch
from numba import prange

from sglang_tetris.cpu import attention
from sglang_tetris.cpu.arithmetic import to_float32
from sglang_tetris.cpu.instructions import bfloat16_at, to_bfloat16
from sglang_tetris.cpu.panels import ADD, CONFIGURATIONS, GATE, WRITE, multiply, share

if TYPE_CHECKING:
    from sglang_tetris.attention.rows import Rows

_LANES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The weights of one layer, bfloat16; the products' in panels (``panels.pack``)."""

    input_norm: torch.Tensor
    qkv: torch.Tensor  # [(num_heads + 2 * num_kv_heads) * head_dim, hidden_size]
    output: torch.Tensor  # [hidden_size, num_heads * head_dim]
    post_norm: torch.Tensor
    gate_up: torch.Tensor  # [2 * intermediate_size, hidden_size]
    down: torch.Tensor  # [hidden_size, intermediate_size]
    keys: torch.Tensor  # [num_slots, num_kv_heads, head_dim]
    values: torch.Tensor


class Decoder:
    """All layers and the last norm; keeps the weights alive that it knows by address."""

    def __init__(
        self,
        layers: Sequence[Layer],
        last_norm: torch.Tensor,
        *,
        epsilon: float,
        scale: float,
        rotary: torch.Tensor,
    ) -> None:
        """``rotary`` [max_position, head_dim] has the cosines and then the sines of a position."""
        self._layers = list(layers)
        self._last_norm = last_norm
        self._epsilon = np.float32(epsilon)
        self._scale = np.float32(scale)
        self._rotary = rotary.float().contiguous()
        self._addresses = np.array(
            [
                [
                    tensor.data_ptr()
                    for tensor in (
                        *(layer.input_norm, layer.qkv, layer.output, layer.post_norm),
                        *(layer.gate_up, layer.down, layer.keys, layer.values),
                    )
                ]
                for layer in layers
            ]
        )
        first = layers[0]
        _, self._num_kv_heads, self._head_dim = first.keys.shape
        self._num_heads = first.output.shape[1] // self._head_dim
        self._intermediate_size = first.down.shape[1]
        self._lanes, self._tiles = attention.configurations(self._num_heads // self._num_kv_heads)
        self._scores = np.empty((0, 0, 0), np.float32)

    def forward(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        req_to_token: torch.Tensor,
        rows: Rows,
    ) -> torch.Tensor:
        """Return the normed states [num_rows, hidden_size]; ``hidden`` is written over.

        ``slots`` [num_rows] is where each row's keys and values go.
        """
        out = torch.empty_like(hidden)
        _forward(
            _bits(hidden),
            self._rotary[positions].numpy(),
            slots.numpy(),
            self._addresses,
            self._last_norm.data_ptr(),
            self._num_heads,
            self._num_kv_heads,
            self._intermediate_size,
            self._epsilon,
            req_to_token.numpy(),
            rows.request.numpy(),
            rows.prefix_len.numpy(),
            rows.extra_indptr.numpy(),
            rows.extra_slots.numpy(),
            self._scale,
            self._lanes,
            self._tiles,
            self._scratch(rows),
            CONFIGURATIONS,
            _bits(out),
        )
        return out

    def _scratch(self, rows: Rows) -> Any:
        """Return space for the scores of every thread's row, kept between forwards."""
        most_keys = int((rows.prefix_len + rows.extra_indptr.diff()).max())
        width = attention.num_scores(most_keys, self._lanes)
        num_threads = torch.get_num_threads()
        if self._scores.shape[0] != num_threads or self._scores.shape[2] < width:
            self._scores = np.empty((num_threads, self._num_kv_heads, width), np.float32)
        return self._scores


def _bits(tensor: torch.Tensor) -> Any:
    return tensor.view(torch.uint16).numpy()


@numba.njit(parallel=True, nogil=True, cache=True)
def _normalise(x: Any, weight: Any, epsilon: Any, out: Any, num_threads: Any) -> None:
    """Write the root-mean-square norm of each row of ``x`` [num_rows, width]."""
    num_rows, width = x.shape
    factors = numba.carray(bfloat16_at(weight), width)
    for thread in prange(num_threads):
        sums = np.empty(_LANES, np.float32)
        for row in range(
            share(thread, num_threads, num_rows), share(thread + 1, num_threads, num_rows)
        ):
            sums[:] = 0
            source, target = x[row], out[row]
            for start in range(0, width, _LANES):
                part = source[start : start + _LANES]
                for k in range(_LANES):
                    number = to_float32(part[k])
                    sums[k] += number * number
            total = np.float32(0)
            for k in range(_LANES):
                total += sums[k]
            factor = np.float32(1) / np.sqrt(total / np.float32(width) + epsilon)
            for k in range(width):
                target[k] = to_bfloat16(to_float32(source[k]) * factor * to_float32(factors[k]))


@numba.njit(nogil=True, cache=True)
def _rotate(source: Any, rotary: Any, target: Any) -> None:
    """Write one head, turned by its position: its halves are the two coordinates."""
    half = source.shape[0] // 2
    for k in range(half):
        first, second = to_float32(source[k]), to_float32(source[k + half])
        cosine, sine = rotary[k], rotary[k + half]
        target[k] = to_bfloat16(first * cosine - second * sine)
        target[k + half] = to_bfloat16(second * cosine + first * sine)


@numba.njit(parallel=True, nogil=True, cache=True)
def _place(
    qkv: Any, rotary: Any, slots: Any, keys: Any, values: Any, query: Any, num_kv_heads: Any,
    num_threads: Any,
) -> None:  # fmt: skip
    """Write the turned queries, and the turned keys and the values into the pool."""
    num_rows, num_heads, head_dim = query.shape
    for thread in prange(num_threads):
        for row in range(
            share(thread, num_threads, num_rows), share(thread + 1, num_threads, num_rows)
        ):
            heads = qkv[row].reshape(num_heads + 2 * num_kv_heads, head_dim)
            for head in range(num_heads):
                _rotate(heads[head], rotary[row], query[row, head])
            offset = slots[row] * num_kv_heads * head_dim * 2
            shape = (num_kv_heads, head_dim)
            key = numba.carray(bfloat16_at(keys + offset), shape)
            value = numba.carray(bfloat16_at(values + offset), shape)
            for head in range(num_kv_heads):
                _rotate(heads[num_heads + head], rotary[row], key[head])
                for k in range(head_dim):
                    value[head, k] = heads[num_heads + num_kv_heads + head, k]


@numba.njit(nogil=True, cache=True)
def _forward(
    hidden: Any,  # [num_rows, hidden_size] uint16, the bits of bfloat16; written over
    rotary: Any,  # [num_rows, head_dim] float32
    slots: Any,  # [num_rows] int64
    addresses: Any,  # [num_layers, 8] int64: the fields of Layer
    last_norm: Any,
    num_heads: Any,
    num_kv_heads: Any,
    intermediate_size: Any,
    epsilon: Any,
    req_to_token: Any,
    request: Any,
    prefix_len: Any,
    extra_indptr: Any,
    extra_slots: Any,
    scale: Any,
    lanes: Any,
    tiles: Any,
    scores: Any,
    configurations: Any,
    out: Any,  # [num_rows, hidden_size] uint16
) -> None:
    num_rows, hidden_size = hidden.shape
    head_dim = rotary.shape[1]
    num_threads = scores.shape[0]
    width = num_heads * head_dim
    qkv = np.empty((num_rows, width + 2 * num_kv_heads * head_dim), np.uint16)
    query = np.empty((num_rows, num_heads, head_dim), np.uint16)
    mixed = np.empty((num_rows, num_heads, head_dim), np.uint16)
    inner = np.empty((num_rows, intermediate_size), np.uint16)
    normed, residual = out.ctypes.data, hidden.ctypes.data
    for layer in range(addresses.shape[0]):
        input_norm, to_qkv, to_output, post_norm, gate_up, down, keys, values = addresses[layer]
        _normalise(hidden, input_norm, epsilon, out, num_threads)
        multiply(
            normed, num_rows, hidden_size, to_qkv, qkv.shape[1], qkv.ctypes.data, WRITE,
            configurations, num_threads,
        )  # fmt: skip
        _place(qkv, rotary, slots, keys, values, query, num_kv_heads, num_threads)
        attention.attend(
            query, keys, values, num_kv_heads, req_to_token, request, prefix_len, extra_indptr,
            extra_slots, scale, lanes, tiles, scores, mixed,
        )  # fmt: skip
        multiply(
            mixed.ctypes.data, num_rows, width, to_output, hidden_size, residual, ADD,
            configurations, num_threads,
        )  # fmt: skip
        _normalise(hidden, post_norm, epsilon, out, num_threads)
        multiply(
            normed, num_rows, hidden_size, gate_up, intermediate_size, inner.ctypes.data, GATE,
            configurations, num_threads,
        )  # fmt: skip
        multiply(
            inner.ctypes.data, num_rows, intermediate_size, down, hidden_size, residual, ADD,
            configurations, num_threads,
        )  # fmt: skip
    _normalise(hidden, last_norm, epsilon, out, num_threads)
