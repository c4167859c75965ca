"""Matrix products on a CPU whose rows do not depend on how many there are.

The libraries behind ``torch.nn.functional.linear`` take other kernels, or cut the sums elsewhere,
for a few rows than for many. Which rows agree is measured, not promised (torch 2.14.1, x86-64, one
and two threads, seven shapes, 1 to 1,100 rows; tests/unit/cpu/test_products.py measures again):

- bfloat16 without AMX differs at one row only, so that a row is never alone.
- bfloat16 with AMX cuts the inner dimension in another way above 32 rows, so that more are taken in
  blocks. Doing without AMX would agree too and costs 6 times at 64 rows, 11 times at 256.
- float32 differs below 16 rows, and anywhere between two threads, unless MKL is asked for strict
  reproducibility; with it nothing differed. It must be asked before its first product.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

_MIN_BFLOAT16_ROWS = 2
_MAX_AMX_ROWS = 32
_FLOAT32_ROWS_PER_THREAD = 4
_HAS_AMX = bool(torch.cpu.get_capabilities().get("amx_bf16", False))


def ask_for_reproducible_products() -> None:
    """Have MKL's float32 products agree, if this process has made none yet and its user has not
    asked for something else."""
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")


def by_independent_rows(
    product: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> torch.Tensor:
    """Return ``product(x)`` for ``x`` of shape [num_rows, width], each row with the bits it has
    in any other batch."""
    if _HAS_AMX and x.dtype != torch.float32 and x.shape[0] > _MAX_AMX_ROWS:
        return torch.cat([_padded_product(product, rows) for rows in torch.split(x, _MAX_AMX_ROWS)])
    return _padded_product(product, x)


def _padded_product(
    product: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> torch.Tensor:
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
