"""The operators that SGLang's CPU engine takes from ``sgl_kernel``."""

from __future__ import annotations

import ctypes

import pytest
import torch

from sglang_tetris.cpu import operators


def test_slots_are_written_to_and_read_from_ragged_spans() -> None:
    table = torch.zeros(5, 8, dtype=torch.int32)
    requests, starts, ends = torch.tensor([3, 1]), torch.tensor([2, 0]), torch.tensor([5, 1])

    operators.assign_req_to_token_pool_cpu(
        requests, table, starts, ends, torch.tensor([11, 12, 13, 14]), 8
    )
    read = torch.zeros(4, dtype=torch.int64)
    operators.assign_extend_cache_locs_cpu(requests, table, starts, ends, read, 8)

    assert table[3].tolist() == [0, 0, 11, 12, 13, 0, 0, 0]
    assert table[1].tolist() == [14, 0, 0, 0, 0, 0, 0, 0]
    assert read.tolist() == [11, 12, 13, 14]


def test_moves_read_every_source_before_they_write() -> None:
    buffers = [
        torch.arange(40).view(10, 4).float(),
        torch.arange(10, dtype=torch.bfloat16)[:, None],
    ]
    before = [buffer.clone() for buffer in buffers]
    pointers = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)
    strides = torch.tensor([buffer.stride(0) * buffer.itemsize for buffer in buffers])
    targets, sources = torch.tensor([1, 2, 5]), torch.tensor([2, 4, 5])

    operators.copy_all_layer_kv_cache_cpu(pointers, strides, targets, sources)

    for buffer, old in zip(buffers, before, strict=True):
        assert torch.equal(buffer[[1, 2, 5]], old[[2, 4, 5]])
        assert torch.equal(buffer[[0, 3, 4, 6, 7, 8, 9]], old[[0, 3, 4, 6, 7, 8, 9]])
    assert ctypes.sizeof(ctypes.c_void_p) == 8


def test_an_operator_we_lack_can_be_imported_and_says_so_when_called() -> None:
    lacking = operators.fancy_new_operator_cpu

    with pytest.raises(NotImplementedError, match="fancy_new_operator_cpu"):
        lacking(1, x=2)


def test_dunder_names_are_not_operators() -> None:
    assert not hasattr(operators, "__path__")
