"""The verify layout lists each request's root and selected nodes, parents first."""

from __future__ import annotations

import pytest
import torch

from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.layout import VerifyLayout, lay_out
from sglang_tetris.core.selection import select
from tests import builders, oracles

TENSORS = (
    "token_ids",
    "requests",
    "depths",
    "nodes",
    "parents",
    "first_child",
    "next_sibling",
    "ancestors",
    "verify_lens",
    "indptr",
)


def as_lists(layout: VerifyLayout) -> dict[str, object]:
    fields: dict[str, object] = {name: getattr(layout, name).tolist() for name in TENSORS}
    return fields | {"num_verify": layout.num_verify, "max_depth": layout.max_depth}


def test_a_layout_by_hand() -> None:
    trees = builders.forest(
        builders.tree([-1, 0, 0, -1, 2], token_ids=[10, 11, 12, 13, 14]),
        builders.chain(2, token_ids=[20, 21]),
        builders.tree([-1], token_ids=[30]),
    )
    selected = torch.tensor([0, 2, 3, 4, 5, 6])  # not node 1; nothing of the last request

    layout = lay_out(trees, selected, torch.tensor([1, 2, 3]), max_depth=3)

    assert as_lists(layout) == {
        "token_ids": [1, 10, 12, 13, 14, 2, 20, 21, 3],
        "requests": [0, 0, 0, 0, 0, 1, 1, 1, 2],
        "depths": [0, 1, 2, 1, 3, 0, 1, 2, 0],
        "nodes": [-1, 0, 2, 3, 4, -1, 5, 6, -1],
        "parents": [-1, 0, 1, 0, 2, -1, 5, 6, -1],
        "first_child": [1, 2, 4, -1, -1, 6, 7, -1, -1],
        "next_sibling": [-1, 3, -1, -1, -1, -1, -1, -1, -1],
        "ancestors": [
            [0, -1, -1, -1],
            [0, 1, -1, -1],
            [0, 1, 2, -1],
            [0, 3, -1, -1],
            [0, 1, 2, 4],
            [5, -1, -1, -1],
            [5, 6, -1, -1],
            [5, 6, 7, -1],
            [8, -1, -1, -1],
        ],
        "verify_lens": [5, 3, 1],
        "indptr": [0, 5, 8, 9],
        "num_verify": 9,
        "max_depth": 3,
    }
    assert layout.num_requests == 3
    assert layout.root_rows.tolist() == [0, 5, 8]
    assert layout.positions(torch.tensor([7, 30, 0])).tolist() == [7, 8, 9, 8, 10, 30, 31, 32, 0]


def test_layouts_agree_with_the_loop_over_requests() -> None:
    for seed in range(1000):
        trees = builders.random_trees(seed, max_nodes=16)
        depth = int(trees.depths.max()) if trees.num_candidates else 0
        roots = [seed + request for request in range(trees.num_requests)]
        for capacity in {0, seed % 7, trees.num_candidates}:
            selected = select(trees.path_logprobs, trees, capacity)
            max_depth = depth + seed % 3

            layout = lay_out(trees, selected, torch.tensor(roots, dtype=torch.int64), max_depth)

            expected = oracles.lay_out(trees, selected.tolist(), roots, max_depth)
            assert as_lists(layout) == expected


def test_a_deep_chain_lists_all_its_ancestors() -> None:
    for depth in range(1, 40):
        trees = builders.chain(depth)

        layout = lay_out(trees, torch.arange(depth), torch.tensor([9]), depth)

        assert layout.ancestors[-1].tolist() == list(range(depth + 1))


def test_every_field_is_int64_whatever_the_roots_are() -> None:
    trees = builders.random_trees(3)
    roots = torch.zeros(trees.num_requests, dtype=torch.int32)

    layout = lay_out(trees, select(trees.path_logprobs, trees, 5), roots, 8)

    assert {getattr(layout, name).dtype for name in TENSORS} == {torch.int64}


@pytest.mark.parametrize("num_requests", [0, 1, 4])
def test_without_candidates_the_roots_alone_are_verified(num_requests: int) -> None:
    trees = CandidateTrees.empty(num_requests)
    roots = torch.arange(num_requests)

    layout = lay_out(trees, torch.empty(0, dtype=torch.int64), roots, 0)

    assert layout.num_verify == num_requests
    assert layout.indptr.tolist() == list(range(num_requests + 1))
    assert layout.ancestors.tolist() == [[row] for row in range(num_requests)]
