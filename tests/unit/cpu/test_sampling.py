"""The CPU's draw is the core's, without the sort; row by row, compiled or cached."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import pytest
import torch

from sglang_tetris.core import sampling as core
from sglang_tetris.core.sampling import Filters
from sglang_tetris.cpu.sampling import draw
from tests import builders

BLOCK = 16  # tokens that the kernel looks at together
LAST = 1 - 2**-53  # the largest number that there is
# Prints a digest of draws over vocabularies up to a few blocks.
DIGEST = """
import hashlib
from tests import builders
from tests.unit.cpu.test_sampling import draw
digest = hashlib.sha256()
for seed in range(60):
    digest.update(draw(*builders.random_rows(seed, 40, 1 + seed * 7)).numpy().tobytes())
print(digest.hexdigest())
"""


def every_pair(logits: torch.Tensor, **options: list[Any]) -> tuple[torch.Tensor, Filters]:
    """Return a row for every combination of a row of logits and a value of each option."""
    rows = list(itertools.product(range(len(logits)), *options.values()))
    columns = [list(column) for column in zip(*rows, strict=True)]
    chosen = dict(zip(options, columns[1:], strict=True))
    return logits[columns[0]], builders.filters(len(rows), **chosen)


@pytest.mark.parametrize(
    ("vocab_size", "num_rows", "num_seeds"),
    [
        (1, 20, 4),
        (2, 40, 20),
        (BLOCK - 1, 40, 20),
        (BLOCK, 40, 20),
        (BLOCK + 1, 40, 20),
        (333, 40, 20),
        (49152, 8, 6),
    ],
)
def test_the_draws_are_those_of_the_core(vocab_size: int, num_rows: int, num_seeds: int) -> None:
    for seed in range(num_seeds):
        logits, filters, numbers = builders.random_rows(seed, num_rows, vocab_size)

        drawn = draw(logits, filters, numbers)

        assert torch.equal(drawn, core.draw(logits, filters, numbers)), seed
        assert drawn.dtype == torch.int64


@pytest.mark.parametrize("vocab_size", [4 * BLOCK, 4 * BLOCK + 1, 8 * BLOCK - 1])
def test_a_cut_by_rank_may_fall_anywhere_among_the_blocks(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    distinct = torch.randn(2, vocab_size, generator=generator)
    rising = torch.arange(vocab_size) / 9.0  # the largest in the last, partial block
    logits = torch.stack((*distinct, *distinct.mul(2).round(), rising, -rising, rising * 0))
    logits, filters = every_pair(
        logits,
        top_k=[2, 3, 4, 5, 7, 8, 9, BLOCK, BLOCK + 1, vocab_size - 1, vocab_size],
        top_p=[0.7, 1.0],
    )

    for number in (0.0, 0.5, 0.9, LAST):
        numbers = torch.full((len(logits),), number, dtype=torch.float64)
        assert torch.equal(draw(logits, filters, numbers), core.draw(logits, filters, numbers))


def test_equal_probabilities_are_cut_by_token_id() -> None:
    """Sums of the probabilities are exact, so every boundary is met exactly."""
    ones = torch.zeros(32)
    pairs = torch.zeros(32)
    pairs[1::2] = -math.inf
    eighths = torch.full((32,), -math.inf)
    eighths[[3, 4, 9, 15, 16, 20, 30, 31]] = 1.5
    logits, filters = every_pair(
        torch.stack((ones, pairs, eighths)),
        top_k=[2, 3, 8, 17, builders.TOP_K_ALL],
        top_p=[1 / 32, 0.125, 0.5, 0.53, 0.875, 31 / 32, 1.0],
        min_p=[0.0, 1.0],
    )

    for number in torch.arange(33).double().div(32).clamp(max=LAST).tolist():
        numbers = torch.full((len(logits),), number, dtype=torch.float64)
        assert torch.equal(draw(logits, filters, numbers), core.draw(logits, filters, numbers))


def test_close_probabilities_are_told_apart_by_their_last_bit() -> None:
    """All of them are in one bin, two by two equal, in no order of their ids."""
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    logits, filters = every_pair(
        (order // 2 * 2.0**-20)[None],
        top_k=[*range(2, 64, 3), builders.TOP_K_ALL],
        top_p=[0.2, 0.5, 0.8, 1.0],
        min_p=[0.0, 0.99999, 1.0],
    )

    for number in (0.0, 0.3, 0.8, LAST):
        numbers = torch.full((len(logits),), number, dtype=torch.float64)
        assert torch.equal(draw(logits, filters, numbers), core.draw(logits, filters, numbers))


@pytest.mark.parametrize("number", [0.0, 0.5, LAST])
def test_a_masked_token_is_never_drawn(number: float) -> None:
    generator = torch.Generator().manual_seed(0)
    allowed = torch.tensor([0, 7, 15, 16, 40, 69])
    masked = torch.full((3, 70), -math.inf)
    masked[:, allowed] = torch.randn(3, 6, generator=generator) * torch.tensor([[0.1], [1], [9]])
    masked[2, 0] = masked[2, 69] = -math.inf
    logits, filters = every_pair(
        masked, top_k=[2, 50, builders.TOP_K_ALL], top_p=[0.3, 0.9999, 1.0], min_p=[0.0, 1e-6]
    )

    drawn = draw(logits, filters, torch.full((len(logits),), number, dtype=torch.float64))

    assert set(drawn.tolist()) <= set(allowed.tolist())
    assert bool((logits.gather(1, drawn[:, None]) > -math.inf).all())


@pytest.mark.parametrize("option", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_a_row_without_a_distribution_takes_its_largest_logit(option: dict[str, Any]) -> None:
    logits = torch.zeros(5, 20)
    logits[0, 17], logits[1], logits[2], logits[3, 4] = math.nan, -math.inf, math.nan, math.inf
    logits[4, 9] = 99.0
    numbers = torch.full((5,), 0.7, dtype=torch.float64)
    filters = builders.filters(5, **option)

    drawn = draw(logits, filters, numbers)

    assert drawn.tolist() == [17, 0, 0, 4, 9]
    assert torch.equal(drawn, core.draw(logits, filters, numbers))


@pytest.mark.parametrize("top_ks", [[1, 1, 1], [1, 5, 1], [5, 1, 5]])
def test_greedy_rows_and_others_go_together(top_ks: list[int]) -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0]]).expand(3, 4)
    numbers = torch.full((3,), LAST, dtype=torch.float64)

    drawn = draw(logits, builders.filters(3, top_k=top_ks), numbers)

    assert drawn.tolist() == [1 if top_k == 1 else 3 for top_k in top_ks]


def test_no_row_gives_no_token() -> None:
    drawn = draw(torch.empty(0, 7), builders.filters(0), torch.empty(0, dtype=torch.float64))

    assert drawn.shape == (0,)


def test_a_top_p_of_1_cuts_nothing() -> None:
    logits = torch.tensor([[0.0, -18.7, -18.7, -18.7]])  # the first has all of a float32's 1
    number = torch.tensor([LAST], dtype=torch.float64)

    for top_k, last in ((3, 2), (4, 3), (builders.TOP_K_ALL, 3)):
        filters = builders.filters(1, top_k=top_k)
        assert draw(logits, filters, number).tolist() == [last]
        assert core.draw(logits, filters, number).tolist() == [last]


@pytest.mark.parametrize("vocab_size", [7, BLOCK, 333, 5000])
def test_a_row_draws_the_same_alone_and_in_any_company(vocab_size: int) -> None:
    logits, filters, numbers = builders.random_rows(vocab_size, 48, vocab_size)
    logits[5], logits[17, : vocab_size // 2 + 1] = math.nan, -math.inf
    generator = torch.Generator().manual_seed(0)
    together = draw(logits, filters, numbers)

    for count in (2, 3, 7, 16, 31, 47):
        rows = torch.randperm(48, generator=generator)[:count]
        part = draw(logits[rows], filters.of_rows(rows), numbers[rows])
        assert torch.equal(part, together[rows])
    for row in range(48):
        rows = torch.tensor([row])
        alone = draw(logits[rows], filters.of_rows(rows), numbers[rows])
        assert torch.equal(alone, together[rows])


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_draw_does_not_depend_on_the_threads(num_threads: int) -> None:
    before = numba.get_num_threads(), torch.get_num_threads()
    logits, filters, numbers = builders.random_rows(0, 64, 2000)
    together = draw(logits, filters, numbers)

    try:
        numba.set_num_threads(min(num_threads, before[0]))
        torch.set_num_threads(num_threads)
        again = draw(logits, filters, numbers)
    finally:
        numba.set_num_threads(before[0])
        torch.set_num_threads(before[1])

    assert torch.equal(again, together)


@pytest.mark.sglang
def test_freshly_compiled_and_cached_code_draw_the_same(tmp_path: Path) -> None:
    environ = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.curdir}

    fresh, cached = (
        subprocess.run(
            [sys.executable, "-c", DIGEST], env=environ, check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    )

    assert any(tmp_path.rglob("*.nbc")), "nothing was cached"
    assert fresh == cached
