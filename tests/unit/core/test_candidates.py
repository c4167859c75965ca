"""CandidateTrees holds its invariant, and validate() notices when it does not."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from sglang_tetris.core.candidates import NO_SOURCE, CandidateTrees, validate
from tests import builders


def test_chains_sum_log_probabilities_and_pad_the_rest() -> None:
    token_ids = torch.tensor([[5, 6, 7], [8, 9, 1], [2, 3, 4]])
    token_logprobs = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, -0.5, -0.5], [0.0, 0.0, 0.0]])

    trees = CandidateTrees.chains(token_ids, token_logprobs, lens=[3, 1, 0], source=2)

    none = -math.inf
    assert trees.token_ids.tolist() == [[5, 6, 7], [8, -1, -1], [-1, -1, -1]]
    assert trees.parents.tolist() == [[-1, 0, 1], [-1, -1, -1], [-1, -1, -1]]
    assert trees.depths.tolist() == [[1, 2, 3], [1, 0, 0], [0, 0, 0]]
    assert trees.path_logprobs.tolist() == [[-1, -3, -6], [-0.5, none, none], [none] * 3]
    assert trees.sources.tolist() == [[2, 2, 2], [2, NO_SOURCE, NO_SOURCE], [NO_SOURCE] * 3]
    assert trees.num_candidates == 4
    assert (trees.num_requests, trees.num_nodes) == (3, 3)
    validate(trees)


def test_chains_take_the_types_that_models_return() -> None:
    token_ids = torch.tensor([[5, 6]], dtype=torch.int32)
    token_logprobs = torch.tensor([[-1.0, -2.0]], dtype=torch.bfloat16)

    validate(CandidateTrees.chains(token_ids, token_logprobs, lens=[2]))


@pytest.mark.parametrize("lens", [[3], [-1], [1, 1], []])
def test_chains_refuse_lengths_that_do_not_fit(lens: list[int]) -> None:
    with pytest.raises(ValueError, match="lens must be 1 lengths between 0 and 2"):
        CandidateTrees.chains(torch.zeros(1, 2), torch.zeros(1, 2), lens=lens)


def test_chains_refuse_log_probabilities_of_another_shape() -> None:
    with pytest.raises(ValueError, match="token_logprobs must have the shape of token_ids"):
        CandidateTrees.chains(torch.zeros(1, 2), torch.zeros(1, 3), lens=[2])


@pytest.mark.parametrize("num_requests", [0, 1, 3])
def test_empty_trees_have_requests_but_no_candidates(num_requests: int) -> None:
    trees = CandidateTrees.empty(num_requests)

    validate(trees)
    assert (trees.num_requests, trees.num_nodes, trees.num_candidates) == (num_requests, 0, 0)


def test_chains_without_requests_or_depth_are_valid() -> None:
    validate(CandidateTrees.chains(torch.zeros(0, 4), torch.zeros(0, 4), lens=[]))
    validate(CandidateTrees.chains(torch.zeros(2, 0), torch.zeros(2, 0), lens=[0, 0]))


def test_random_forests_are_valid() -> None:
    for seed in range(500):
        validate(builders.random_trees(seed))


BROKEN: dict[str, dict[str, Any]] = {
    "all fields must have the shape": {"parents": [[-1, -1]]},
    "must be int64": {"depths": [[1.0, 1.0, 2.0], [1.0, 0.0, 0.0]]},
    "num_candidates is 5": {"num_candidates": 5},
    "sources must be NO_SOURCE or at least 0": {"sources": [[0, 0, -2], [0, -1, -1]]},
    "padding must follow the real nodes": {"sources": [[0, 0, 0], [-1, -1, 0]]},
    "padding must be token -1": {"token_ids": [[4, 5, 4], [4, 0, -1]]},
    "draft tokens must be at least 0": {"token_ids": [[4, -1, 4], [4, -1, -1]]},
    "parents must come before children": {"parents": [[-1, -1, 2], [-1, -1, -1]]},
    "a node must be one deeper than its parent": {"depths": [[1, 1, 3], [1, 0, 0]]},
    "siblings must have distinct tokens": {"token_ids": [[4, 4, 4], [4, -1, -1]]},
}


@pytest.mark.parametrize("message", BROKEN)
def test_validate_names_the_broken_invariant(message: str) -> None:
    trees = builders.forest(
        builders.tree([-1, -1, 0], token_ids=[4, 5, 4]), builders.chain(1, token_ids=[4])
    )
    validate(trees)
    changes: dict[str, Any] = {
        name: value if isinstance(value, int) else torch.tensor(value)
        for name, value in BROKEN[message].items()
    }

    with pytest.raises(ValueError, match=message):
        validate(dataclasses.replace(trees, **changes))


def test_validate_refuses_log_probabilities_of_another_type() -> None:
    trees = builders.chain(2)

    with pytest.raises(ValueError, match="path_logprobs must be float32"):
        validate(dataclasses.replace(trees, path_logprobs=trees.path_logprobs.double()))
