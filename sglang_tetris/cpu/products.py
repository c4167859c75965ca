"""Matrix products on a CPU whose rows do not depend on how many there are.

The library behind ``torch.nn.functional.linear`` takes other kernels, with sums in another
order, for a few rows than for many. Padding by copies of rows keeps to one kernel. Measured
(torch 2.14.1, x86-64, one and two threads, eight shapes, 1 to 300 rows): bfloat16 differs at one
row only; float32 where a thread gets fewer than four rows or a remainder of four.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_MIN_BFLOAT16_ROWS = 2
_FLOAT32_ROWS_PER_THREAD = 4


def by_independent_rows(
    product: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> torch.Tensor:
    """Return ``product(x)`` for ``x`` of shape [num_rows, width], each row with the bits it has
    in any larger batch."""
    num_rows = x.shape[0]
    num_padded = _padded(num_rows, x.dtype)
    if num_padded == num_rows:
        return product(x)
    padding = x[-1:].expand(num_padded - num_rows, *x.shape[1:])
    return product(torch.cat((x, padding)))[:num_rows]


def _padded(num_rows: int, dtype: torch.dtype) -> int:
    if num_rows == 0:
        return 0
    if dtype != torch.float32:
        return max(num_rows, _MIN_BFLOAT16_ROWS)
    whole = _FLOAT32_ROWS_PER_THREAD * torch.get_num_threads()
    return num_rows if num_rows >= 2 * whole else -(-num_rows // whole) * whole
