"""Attention over rows: against torch, bit for bit row by row, and compiled against cached."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sglang_tetris.attention.cpu_kernel import BLOCK, attend
from sglang_tetris.attention.rows import Rows, extend_rows, prefix_rows

NUM_SLOTS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 500, 6, 2, 16
SCALE = HEAD_DIM**-0.5
# Prints a digest of attention over every length up to a few blocks.
DIGEST = """
import hashlib, torch
from tests.unit.attention.test_cpu_kernel import SCALE, attend, buffers, prefix_rows, queries
digest = hashlib.sha256()
for length in range(1, 200, 3):
    rows = prefix_rows(torch.arange(2), torch.full((2,), length))
    digest.update(attend(queries(2), *buffers(torch.bfloat16), rows, SCALE).numpy().tobytes())
print(digest.hexdigest())
"""


def buffers(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (NUM_SLOTS, NUM_KV_HEADS, HEAD_DIM)
    keys = torch.randn(shape, generator=generator).to(dtype)
    values = torch.randn(shape, generator=generator).to(dtype)
    slots = torch.randperm(NUM_SLOTS, generator=generator)[:400].view(2, 200).int()
    return keys, values, slots


def queries(num_rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(num_rows, NUM_HEADS, HEAD_DIM, generator=generator)


def reference(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor
) -> torch.Tensor:
    """Attend with one row's query over the listed slots."""
    group = NUM_HEADS // NUM_KV_HEADS
    k = keys[slots.long()].double().repeat_interleave(group, dim=1)
    v = values[slots.long()].double().repeat_interleave(group, dim=1)
    weights = (torch.einsum("hd,nhd->hn", query.double(), k) * SCALE).softmax(dim=-1)
    return torch.einsum("hn,nhd->hd", weights, v).float()


def tree_rows() -> Rows:
    """Three rows of request 1 behind a prefix: a root and two siblings below it."""
    return Rows(
        request=torch.tensor([1, 1, 1]),
        prefix_len=torch.tensor([90, 90, 90]),
        extra_indptr=torch.tensor([0, 1, 3, 5]),
        extra_slots=torch.tensor([7, 7, 8, 7, 9]),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("length", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 200])
def test_a_row_attends_to_its_prefix(dtype: torch.dtype, length: int) -> None:
    keys, values, table = buffers(dtype)
    rows = prefix_rows(torch.tensor([0, 1]), torch.tensor([length, 1]))

    out = attend(queries(2), keys, values, table, rows, SCALE)

    for row, n in ((0, length), (1, 1)):
        expected = reference(queries(2)[row], keys, values, table[row, :n])
        torch.testing.assert_close(out[row], expected, rtol=1e-5, atol=1e-6)


def test_a_tree_row_attends_to_its_ancestors_only() -> None:
    keys, values, table = buffers(torch.bfloat16)

    out = attend(queries(3), keys, values, table, tree_rows(), SCALE)

    for row, extra in enumerate(([7], [7, 8], [7, 9])):
        slots = torch.cat((table[1, :90], torch.tensor(extra)))
        expected = reference(queries(3)[row], keys, values, slots)
        torch.testing.assert_close(out[row], expected, rtol=1e-5, atol=1e-6)


def test_a_row_has_the_same_bits_alone_and_in_company() -> None:
    keys, values, table = buffers(torch.bfloat16)
    lens = torch.arange(1, 65) * 3
    query = queries(64)
    together = attend(query, keys, values, table, prefix_rows(lens % 2, lens), SCALE)

    for i in range(64):
        one = prefix_rows(lens[i : i + 1] % 2, lens[i : i + 1])
        assert torch.equal(
            attend(query[i : i + 1], keys, values, table, one, SCALE)[0], together[i]
        )


def test_a_key_counts_alike_from_the_prefix_and_from_the_extra_slots() -> None:
    keys, values, table = buffers(torch.bfloat16)
    verified = Rows(
        request=torch.tensor([0]),
        prefix_len=torch.tensor([100]),
        extra_indptr=torch.tensor([0, 5]),
        extra_slots=table[0, 100:105].long(),
    )

    as_extra = attend(queries(1), keys, values, table, verified, SCALE)
    as_prefix = attend(
        queries(1), keys, values, table, prefix_rows(torch.tensor([0]), torch.tensor([105])), SCALE
    )

    assert torch.equal(as_extra, as_prefix)


def test_prefill_and_decode_give_a_token_the_same_bits() -> None:
    keys, values, table = buffers(torch.bfloat16)
    query = queries(70)
    prefill = extend_rows(torch.tensor([1]), torch.tensor([30]), torch.tensor([70]), 70)
    chunk = attend(query, keys, values, table, prefill, SCALE)

    for i in (0, 1, 33, 69):
        decode = prefix_rows(torch.tensor([1]), torch.tensor([30 + i + 1]))
        assert torch.equal(
            attend(query[i : i + 1], keys, values, table, decode, SCALE)[0], chunk[i]
        )


def test_the_query_dtype_comes_back() -> None:
    keys, values, table = buffers(torch.bfloat16)
    rows = prefix_rows(torch.tensor([0]), torch.tensor([3]))

    assert attend(queries(1).bfloat16(), keys, values, table, rows, SCALE).dtype == torch.bfloat16


@pytest.mark.sglang
def test_a_freshly_compiled_and_a_cached_kernel_have_the_same_bits(tmp_path: Path) -> None:
    environ = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.curdir}

    fresh, cached = (
        subprocess.run(
            [sys.executable, "-c", DIGEST], env=environ, check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    )

    assert any(tmp_path.rglob("*.nbc")), "nothing was cached"
    assert fresh == cached
