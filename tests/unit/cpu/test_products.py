"""A row of a matrix product has the same bits whatever rows stand beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch.nn.functional import linear

from sglang_tetris.cpu.products import ask_for_reproducible_products, by_independent_rows

SHAPES = [(960, 576), (3072, 576), (576, 1536), (2048, 2048)]  # (out, in)
COUNTS = [1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16, 31, 32, 33, 63, 64, 65, 100, 160, 257]


def check_that_rows_do_not_depend_on_their_number(dtype: torch.dtype, num_threads: int) -> None:
    """Compare parts of a batch with the whole of it; raise ``AssertionError`` where they differ."""
    torch.set_num_threads(num_threads)
    generator = torch.Generator().manual_seed(0)
    for num_out, num_in in SHAPES:
        weight = (torch.randn(num_out, num_in, generator=generator) * 0.05).to(dtype)
        x = torch.randn(300, num_in, generator=generator).to(dtype)
        product = partial(linear, weight=weight)
        whole = by_independent_rows(product, x)
        torch.testing.assert_close(whole, product(x))
        for count in COUNTS:
            for start in (0, 17):
                part = x[start : start + count]
                alone = by_independent_rows(product, part)
                assert torch.equal(alone, whole[start : start + count]), (num_in, count)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_rows_do_not_depend_on_their_number(dtype: str, num_threads: int) -> None:
    # In a process of its own: MKL listens only before its first product.
    code = (
        f"import torch; from {__name__} import *; from sglang_tetris.cpu.products import *;"
        "ask_for_reproducible_products();"
        f"check_that_rows_do_not_depend_on_their_number(torch.{dtype}, {num_threads})"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_the_user_asks_of_mkl_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    ask_for_reproducible_products()
    assert os.environ["MKL_CBWR"] == "COMPATIBLE"

    monkeypatch.delenv("MKL_CBWR")
    ask_for_reproducible_products()
    assert os.environ["MKL_CBWR"] == "AUTO,STRICT"


def test_no_row_gives_no_row() -> None:
    product = by_independent_rows(lambda rows: linear(rows, torch.ones(3, 4)), torch.ones(0, 4))

    assert product.shape == (0, 3)
