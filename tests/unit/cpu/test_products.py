"""A row of a matrix product has the same bits whatever rows stand beside it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.nn.functional import linear

from sglang_tetris.cpu.products import by_independent_rows

SHAPES = [(960, 576), (3072, 576), (576, 1536), (2048, 2048)]  # (out, in)
COUNTS = [1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 16, 31, 33, 64, 100]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_rows_do_not_depend_on_their_number(dtype: torch.dtype, num_threads: int) -> None:
    threads_before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    generator = torch.Generator().manual_seed(0)
    try:
        for num_out, num_in in SHAPES:
            weight = (torch.randn(num_out, num_in, generator=generator) * 0.05).to(dtype)
            x = torch.randn(128, num_in, generator=generator).to(dtype)
            whole = linear(x, weight)
            for count in COUNTS:
                for start in (0, 17):
                    part = x[start : start + count]
                    alone = by_independent_rows(partial(linear, weight=weight), part)
                    assert torch.equal(alone, whole[start : start + count]), (num_in, count)
    finally:
        torch.set_num_threads(threads_before)


def test_no_row_gives_no_row() -> None:
    product = by_independent_rows(lambda rows: linear(rows, torch.ones(3, 4)), torch.ones(0, 4))

    assert product.shape == (0, 3)
