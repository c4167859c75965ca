"""Candidate trees and sampling rows for tests: by hand, and seeded with ties and other extremes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import torch

from sglang_tetris.core.candidates import NO_SOURCE, CandidateTrees
from sglang_tetris.core.sampling import Filters

NUM_SOURCES = 3  # of random_trees
VOCAB = 6  # small, so that draws hit draft tokens often
TOP_K_ALL = 1 << 30  # SGLang's word for no top-k


def tree(
    parents: Sequence[int],
    *,
    token_ids: Sequence[int] | None = None,
    logprobs: Sequence[float] | None = None,
    sources: Sequence[int] | None = None,
) -> CandidateTrees:
    """Return one request's tree; ``logprobs`` are conditional, and certain if left out."""
    depths: list[int] = []
    path_logprobs: list[float] = []
    for node, parent in enumerate(parents):
        depths.append(1 if parent < 0 else depths[parent] + 1)
        above = 0.0 if parent < 0 else path_logprobs[parent]
        path_logprobs.append(above + (logprobs[node] if logprobs else 0.0))
    return CandidateTrees(
        token_ids=torch.tensor([token_ids or range(len(parents))], dtype=torch.int64),
        parents=torch.tensor([parents], dtype=torch.int64),
        depths=torch.tensor([depths], dtype=torch.int64),
        path_logprobs=torch.tensor([path_logprobs], dtype=torch.float32),
        sources=torch.tensor([sources or [0] * len(parents)], dtype=torch.int64),
        num_candidates=len(parents),
    )


def chain(
    length: int,
    *,
    token_ids: Sequence[int] | None = None,
    logprobs: Sequence[float] | None = None,
) -> CandidateTrees:
    """Return one request's tree of width 1."""
    return tree(range(-1, length - 1), token_ids=token_ids, logprobs=logprobs)


def forest(*trees: CandidateTrees) -> CandidateTrees:
    """Return the batch of these requests, padded to the largest."""
    num_nodes = max((each.num_nodes for each in trees), default=0)

    def padded(name: str, fill: float) -> torch.Tensor:
        rows: list[torch.Tensor] = [getattr(each, name) for each in trees]
        return torch.cat(
            [
                torch.cat((row, row.new_full((1, num_nodes - row.shape[1]), fill)), dim=1)
                for row in rows
            ]
        )

    if not trees:
        return CandidateTrees.empty(0)
    return CandidateTrees(
        token_ids=padded("token_ids", -1),
        parents=padded("parents", -1),
        depths=padded("depths", 0),
        path_logprobs=padded("path_logprobs", -math.inf),
        sources=padded("sources", NO_SOURCE),
        num_candidates=sum(each.num_candidates for each in trees),
    )


def random_trees(
    seed: int,
    *,
    max_requests: int = 5,
    max_nodes: int = 8,
    tie_rate: float = 0.5,
    chains_only: bool = False,
) -> CandidateTrees:
    """Return a seeded forest of 0 to ``max_requests`` trees of 0 to ``max_nodes`` nodes.

    A third of the trees are chains. ``tie_rate`` is the share of nodes that are certain, a coin
    flip or impossible; in every other forest all nodes are of that kind if there are any.
    """
    rng = random.Random(seed)
    if tie_rate > 0 and seed % 2:
        tie_rate = 1.0
    trees = []
    for _ in range(rng.choice([0, 1, *range(max_requests + 1)])):
        num_nodes = rng.randint(0, max_nodes)
        is_chain = chains_only or rng.random() < 1 / 3
        parents: list[int] = []
        token_ids: list[int] = []
        logprobs: list[float] = []
        for node in range(num_nodes):
            parents.append(node - 1 if is_chain else _parent_with_room(rng, parents))
            taken = {token_ids[twin] for twin in range(node) if parents[twin] == parents[node]}
            token_ids.append(rng.choice([token for token in range(VOCAB) if token not in taken]))
            is_tie = rng.random() < tie_rate
            tied = rng.choice([0.0, 0.0, math.log(0.5), math.log(0.5), -math.inf])
            logprobs.append(tied if is_tie else math.log(1.0 - rng.random()))
        sources = [rng.randrange(NUM_SOURCES) for _ in parents]
        trees.append(tree(parents, token_ids=token_ids, logprobs=logprobs, sources=sources))
    return forest(*trees)


def _parent_with_room(rng: random.Random, parents: Sequence[int]) -> int:
    """Return the root or an earlier node with fewer children than the vocabulary has tokens."""
    return rng.choice(
        [parent for parent in range(-1, len(parents)) if parents.count(parent) < VOCAB]
    )


def filters(
    num_rows: int,
    *,
    temperature: float | Sequence[float] = 1.0,
    top_k: int | Sequence[int] = TOP_K_ALL,
    top_p: float | Sequence[float] = 1.0,
    min_p: float | Sequence[float] = 0.0,
) -> Filters:
    """Return filters of SGLang's types, the same for every row or one value for each."""

    def column(value: float | Sequence[float], dtype: torch.dtype) -> torch.Tensor:
        values = value if isinstance(value, Sequence) else [value] * num_rows
        assert len(values) == num_rows
        return torch.tensor(values, dtype=dtype)

    return Filters(
        temperatures=column(temperature, torch.float32),
        top_ks=column(top_k, torch.int32),
        top_ps=column(top_p, torch.float32),
        min_ps=column(min_p, torch.float32),
    )


def random_rows(
    seed: int, num_rows: int, vocab_size: int
) -> tuple[torch.Tensor, Filters, torch.Tensor]:
    """Return seeded logits, filters mixed row by row, and numbers.

    Every other time the logits are quantised, so that many probabilities of a row are equal.
    """
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * rng.choice([0.5, 2.0, 6.0])
    if seed % 2:
        logits = logits.mul(2).round().div(2)
    mixed = filters(
        num_rows,
        temperature=[rng.choice([0.3, 0.7, 1.0, 1.0, 1.7]) for _ in range(num_rows)],
        top_k=[rng.choice([1, 2, 3, 8, 40, TOP_K_ALL, TOP_K_ALL]) for _ in range(num_rows)],
        top_p=[rng.choice([0.05, 0.5, 0.9, 0.95, 0.999, 1.0, 1.0]) for _ in range(num_rows)],
        min_p=[rng.choice([0.0, 0.0, 0.0, 0.02, 0.3, 1.0]) for _ in range(num_rows)],
    )
    numbers = torch.rand(num_rows, generator=generator, dtype=torch.float64)
    return logits, mixed, numbers
