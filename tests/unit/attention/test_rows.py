"""Rows are built from SGLang's lengths and from verify layouts."""

from __future__ import annotations

import torch

from sglang_tetris.attention.rows import Rows, extend_rows, verify_rows, window_rows
from sglang_tetris.core.layout import lay_out
from sglang_tetris.core.selection import select
from tests.builders import random_trees


def extra_of(rows: Rows) -> list[list[int]]:
    """Return each row's extra slots."""
    bounds = rows.extra_indptr.tolist()
    return [rows.extra_slots[a:b].tolist() for a, b in zip(bounds, bounds[1:], strict=False)]


def test_a_prefill_row_attends_up_to_itself() -> None:
    rows = extend_rows(torch.tensor([4, 2]), torch.tensor([10, 0]), torch.tensor([2, 3]), 5)

    assert rows.request.tolist() == [4, 4, 2, 2, 2]
    assert rows.prefix_len.tolist() == [11, 12, 1, 2, 3]
    assert extra_of(rows) == [[], [], [], [], []]


def test_a_verify_row_attends_to_the_slots_of_its_ancestors_and_its_own() -> None:
    for seed in range(200):
        trees = random_trees(seed)
        scores = trees.path_logprobs.exp()
        selected = select(scores, trees, seed % 9)
        roots = torch.zeros(trees.num_requests, dtype=torch.int64)
        layout = lay_out(trees, selected, roots, max_depth=max(1, trees.num_nodes))
        slots = torch.randperm(1000)[: layout.num_verify]
        requests = torch.randperm(50)[: trees.num_requests]
        seq_lens = torch.randint(1, 300, (trees.num_requests,))

        rows = verify_rows(layout, requests, seq_lens, slots)

        expected = []
        for row in range(layout.num_verify):
            path = [row]
            while (parent := int(layout.parents[path[0]])) >= 0:
                path.insert(0, parent)
            expected.append([int(slots[r]) for r in path])
        assert extra_of(rows) == expected
        assert rows.prefix_len.tolist() == seq_lens[layout.requests].tolist()
        assert rows.request.tolist() == requests[layout.requests].tolist()


def test_a_window_row_attends_to_the_slots_its_mask_names() -> None:
    slots = torch.tensor([[50, 51, 52], [60, 61, 62]])
    attends = torch.tensor(
        [
            [[True, False, False], [True, False, True]],
            [[False, True, False], [True, True, True]],
        ]
    )

    rows = window_rows(torch.tensor([4, 2]), torch.tensor([10, 7]), slots, attends)

    assert rows.request.tolist() == [4, 4, 2, 2]
    assert rows.prefix_len.tolist() == [10, 10, 7, 7]
    assert extra_of(rows) == [[50], [50, 52], [61], [60, 61, 62]]
