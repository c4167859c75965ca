"""Selection fills the capacity with the best ancestor-closed set of the whole batch."""

from __future__ import annotations

import math

import pytest
import torch

from sglang_tetris.core.calibration import Calibration, score
from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.selection import select
from tests import builders, oracles

IDENTITY = Calibration.identity(builders.NUM_SOURCES, 16)


def capacities(trees: CandidateTrees) -> list[int]:
    num = trees.num_candidates
    return sorted({0, 1, num // 3, num // 2, num - 1, num, num + 1, 10 * num + 7} - {-1})


def as_nodes(trees: CandidateTrees, node_ids: torch.Tensor) -> list[oracles.Node]:
    return [divmod(node_id, trees.num_nodes) for node_id in node_ids.tolist()]


def chain_lens(trees: CandidateTrees, node_ids: torch.Tensor) -> list[int]:
    requests = [request for request, _ in as_nodes(trees, node_ids)]
    return [requests.count(request) for request in range(trees.num_requests)]


def test_selection_is_the_best_ancestor_closed_set() -> None:
    for seed in range(250):
        trees = builders.random_trees(seed, max_requests=3, max_nodes=4)
        scores = score(trees, IDENTITY)
        for capacity in range(trees.num_candidates + 1):
            nodes = as_nodes(trees, select(scores, trees, capacity))

            total = math.fsum(scores[node].item() for node in nodes)
            assert total == pytest.approx(
                oracles.best_closed_sum(scores, trees, capacity), rel=1e-12
            )


@pytest.mark.parametrize("tie_rate", [0.0, 0.5])
def test_selection_takes_the_nodes_that_a_heap_takes(tie_rate: float) -> None:
    for seed in range(1000):
        trees = builders.random_trees(seed, max_nodes=16, tie_rate=tie_rate)
        scores = score(trees, IDENTITY)
        for capacity in capacities(trees):
            selected = select(scores, trees, capacity)

            assert selected.tolist() == oracles.select(scores, trees, capacity)


def test_selection_fills_the_capacity_and_keeps_ancestors() -> None:
    for seed in range(1000):
        trees = builders.random_trees(seed, max_requests=8)
        # Raw log-probabilities are scores too: they never rise along a path.
        for capacity in capacities(trees):
            selected = select(trees.path_logprobs, trees, capacity)

            nodes = as_nodes(trees, selected)
            assert selected.dtype == torch.int64
            assert len(set(nodes)) == len(nodes) == min(capacity, trees.num_candidates)
            assert nodes == sorted(nodes)
            assert set(nodes) <= set(oracles.real_nodes(trees))
            assert oracles.is_closed(trees, nodes)


def test_the_best_of_the_batch_win_not_the_best_of_each_request() -> None:
    trees = builders.forest(
        builders.chain(3, logprobs=[-0.1, -0.1, -0.1]),
        builders.tree([-1, -1, 0], logprobs=[-0.35, -3.0, -0.1]),
        builders.chain(1, logprobs=[-9.0]),
    )

    assert select(trees.path_logprobs, trees, 4).tolist() == [0, 1, 2, 3]
    assert select(trees.path_logprobs, trees, 5).tolist() == [0, 1, 2, 3, 5]


def test_ties_go_to_the_shallower_node_then_the_lower_request_then_the_lower_node() -> None:
    trees = builders.forest(builders.tree([-1, 0, -1]), builders.chain(3))
    scores = torch.ones(2, 3)

    order = [0, 2, 3, 1, 4, 5]  # flat ids: depth 1 of both, then depth 2 of both, then depth 3
    for capacity in range(7):
        assert select(scores, trees, capacity).tolist() == sorted(order[:capacity])


@pytest.mark.parametrize("impossible", [-math.inf, math.nan])
def test_padding_is_not_selected_even_beside_impossible_candidates(impossible: float) -> None:
    trees = builders.forest(builders.chain(1), builders.chain(4))
    scores = torch.full((2, 4), impossible)

    assert select(scores, trees, 3).tolist() == [0, 4, 5]
    assert select(scores, trees, 8).tolist() == [0, 4, 5, 6, 7]


def test_padding_is_not_selected_whatever_its_score() -> None:
    trees = builders.forest(builders.chain(1), builders.chain(3))
    scores = torch.tensor([[0.5, 9.0, math.nan], [0.4, 0.3, 0.2]])

    assert select(scores, trees, 2).tolist() == [0, 3]


def test_unusable_scores_lose_to_any_other() -> None:
    trees = builders.tree([-1, -1, -1])

    assert select(torch.tensor([[math.nan, 0.0, 0.5]]), trees, 2).tolist() == [1, 2]


def test_a_batch_selects_the_same_nodes_in_any_order() -> None:
    for seed in range(200):
        trees = builders.random_trees(seed, tie_rate=0.0)
        backwards = builders.forest(*[_request(trees, r) for r in range(trees.num_requests)][::-1])
        for capacity in capacities(trees):
            selected = as_nodes(trees, select(trees.path_logprobs, trees, capacity))
            mirrored = as_nodes(backwards, select(backwards.path_logprobs, backwards, capacity))

            last = trees.num_requests - 1
            assert sorted((last - request, node) for request, node in mirrored) == selected


def _request(trees: CandidateTrees, request: int) -> CandidateTrees:
    row = slice(request, request + 1)
    return CandidateTrees(
        token_ids=trees.token_ids[row],
        parents=trees.parents[row],
        depths=trees.depths[row],
        path_logprobs=trees.path_logprobs[row],
        sources=trees.sources[row],
        num_candidates=int((~trees.is_padding[row]).sum()),
    )


def test_selection_leaves_its_input_alone() -> None:
    trees = builders.random_trees(7)
    scores = score(trees, IDENTITY)
    before = [scores.clone(), *(field.clone() for field in (trees.depths, trees.path_logprobs))]

    select(scores, trees, 3)

    after = [scores, trees.depths, trees.path_logprobs]
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize("num_requests", [0, 2])
def test_without_candidates_nothing_is_selected(num_requests: int) -> None:
    trees = CandidateTrees.empty(num_requests)

    assert select(trees.path_logprobs, trees, 5).tolist() == []


def test_a_negative_capacity_is_refused() -> None:
    trees = builders.chain(2)

    with pytest.raises(ValueError, match="capacity must be at least 0, got -1"):
        select(trees.path_logprobs, trees, -1)


def random_logprobs(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (1 + seed % 9, 1 + seed % 7)
    return torch.rand(shape, generator=generator).log()


def full_chains(logprobs: torch.Tensor) -> CandidateTrees:
    num_requests, depth = logprobs.shape
    token_ids = torch.zeros(logprobs.shape, dtype=torch.int64)
    return CandidateTrees.chains(token_ids, logprobs, lens=[depth] * num_requests)


def test_without_ties_chains_get_the_papers_lengths() -> None:
    for seed in range(300):
        logprobs = random_logprobs(seed)
        trees = full_chains(logprobs)
        for capacity in capacities(trees):
            ours = chain_lens(trees, select(score(trees, IDENTITY), trees, capacity))

            assert ours == oracles.paper_select(logprobs, capacity).tolist()


@pytest.mark.parametrize(("num_requests", "depth", "capacity"), [(4, 7, 1), (256, 7, 200)])
def test_with_ties_the_papers_rule_verifies_more_than_the_capacity(
    num_requests: int, depth: int, capacity: int
) -> None:
    logprobs = torch.zeros(num_requests, depth)
    trees = full_chains(logprobs)

    assert oracles.paper_select(logprobs, capacity).sum() > capacity
    assert len(select(score(trees, IDENTITY), trees, capacity)) == capacity


@pytest.mark.slow
def test_the_papers_rule_is_what_its_own_dependency_computes() -> None:
    torch_scatter = pytest.importorskip("torch_scatter")
    for seed in range(100):
        logprobs = random_logprobs(seed)
        num_requests, depth = logprobs.shape
        for capacity in range(logprobs.numel() + 1):
            best = logprobs.cumsum(dim=1).flatten().topk(capacity).indices
            lens, _ = torch_scatter.scatter_max(
                best % depth + 1, best // depth, dim=0, dim_size=num_requests
            )

            assert lens.tolist() == oracles.paper_select(logprobs, capacity).tolist()
