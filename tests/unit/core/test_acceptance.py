"""Acceptance walks along the target's own draws, and so leaves their law alone."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable

import pytest
import torch

from sglang_tetris.core.acceptance import Acceptance, accept
from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.layout import VerifyLayout, lay_out
from sglang_tetris.core.selection import select
from tests import builders, oracles


def lay_out_best(trees: CandidateTrees, capacity: int) -> VerifyLayout:
    depth = int(trees.depths.max()) if trees.num_candidates else 0
    selected = select(trees.path_logprobs, trees, capacity)
    return lay_out(trees, selected, torch.zeros(trees.num_requests, dtype=torch.int64), depth)


def test_an_acceptance_by_hand() -> None:
    trees = builders.forest(
        builders.tree([-1, -1, 1, 1], token_ids=[4, 5, 6, 7]),
        builders.chain(2, token_ids=[8, 9]),
        builders.tree([]),
    )
    layout = lay_out_best(trees, 6)
    # rows:      root 4  5  6  7 | root 8  9 | root
    sampled = torch.tensor([5, 0, 7, 0, 3, 1, 9, 9, 2])

    acceptance = accept(layout, sampled)

    assert acceptance.num_correct_drafts.tolist() == [2, 0, 0]
    assert acceptance.accept_lens.tolist() == [3, 1, 1]
    assert acceptance.accepted_rows.tolist() == [[0, 2, 4], [5, -1, -1], [8, -1, -1]]
    assert acceptance.token_ids.tolist() == [[5, 7, 3], [1, -1, -1], [2, -1, -1]]
    assert acceptance.bonus_token_ids.tolist() == [3, 1, 2]


def test_acceptance_agrees_with_the_walk_token_by_token() -> None:
    for seed in range(1500):
        trees = builders.random_trees(seed, max_nodes=16)
        layout = lay_out_best(trees, seed % 40)
        rng = random.Random(seed)
        sampled = [rng.randrange(builders.VOCAB) for _ in range(layout.num_verify)]

        acceptance = accept(layout, torch.tensor(sampled, dtype=torch.int64))

        token_ids, parents = layout.token_ids.tolist(), layout.parents.tolist()
        for request, root_row in enumerate(layout.root_rows.tolist()):
            rows, emitted = oracles.accept(token_ids, parents, root_row, sampled)
            padding = [-1] * (layout.max_depth + 1 - len(rows))
            assert acceptance.accepted_rows[request].tolist() == rows + padding
            assert acceptance.token_ids[request].tolist() == emitted + padding
            assert acceptance.num_correct_drafts[request] == len(rows) - 1
            assert acceptance.accept_lens[request] == len(emitted)
            assert acceptance.bonus_token_ids[request] == emitted[-1]


def test_accepted_drafts_are_the_emitted_tokens_but_the_bonus() -> None:
    for seed in range(300):
        trees = builders.random_trees(seed)
        layout = lay_out_best(trees, 12)
        generator = torch.Generator().manual_seed(seed)
        sampled = torch.randint(builders.VOCAB, (layout.num_verify,), generator=generator)

        acceptance = accept(layout, sampled)

        drafts = acceptance.accepted_rows[:, 1:]
        assert torch.equal(
            torch.where(drafts >= 0, layout.token_ids[drafts], -1),
            torch.where(drafts >= 0, acceptance.token_ids[:, :-1], -1),
        )


def test_draws_of_any_integer_type_are_taken() -> None:
    layout = lay_out_best(builders.chain(2, token_ids=[4, 5]), 2)

    acceptance = accept(layout, torch.tensor([4, 5, 6], dtype=torch.int32))

    assert acceptance.token_ids.tolist() == [[4, 5, 6]]
    assert acceptance.token_ids.dtype == torch.int64


@pytest.mark.parametrize("num_requests", [0, 3])
def test_without_candidates_every_draw_is_a_bonus(num_requests: int) -> None:
    layout = lay_out_best(CandidateTrees.empty(num_requests), 4)
    sampled = torch.arange(num_requests) + 7

    acceptance = accept(layout, sampled)

    assert acceptance.bonus_token_ids.tolist() == sampled.tolist()
    assert acceptance.accept_lens.tolist() == [1] * num_requests
    assert acceptance.token_ids.shape == acceptance.accepted_rows.shape == (num_requests, 1)


# The law of what is emitted, by enumerating every draw of every row.

Law = dict[tuple[int, ...], float]
AcceptanceRule = Callable[[VerifyLayout, torch.Tensor], Acceptance]
NUM_TOKENS = 3


def target_probs(prefix: tuple[int, ...]) -> list[float]:
    """Return some distribution over the vocabulary that depends on the whole prefix."""
    weights = [1.0 + (7 * len(prefix) + 5 * token + 3 * sum(prefix)) % 11 for token in range(3)]
    return [weight / sum(weights) for weight in weights]


def emitted_law(trees: CandidateTrees, capacity: int, rule: AcceptanceRule) -> Law:
    layout = lay_out_best(trees, capacity)
    token_ids, ancestors = layout.token_ids.tolist(), layout.ancestors.tolist()
    probs = [
        target_probs(tuple(token_ids[above] for above in path[1:] if above >= 0))
        for path in ancestors
    ]
    law: Law = defaultdict(float)
    for draws in itertools.product(range(NUM_TOKENS), repeat=layout.num_verify):
        acceptance = rule(layout, torch.tensor(draws))
        emitted = acceptance.token_ids[0, : int(acceptance.accept_lens[0])]
        chance = 1.0
        for row, token in enumerate(draws):
            chance *= probs[row][token]
        law[tuple(emitted.tolist())] += chance
    return law


def is_the_targets_law(law: Law) -> bool:
    def target_chance(tokens: tuple[int, ...]) -> float:
        chance = 1.0
        for end, token in enumerate(tokens):
            chance *= target_probs(tokens[:end])[token]
        return chance

    return all(chance == pytest.approx(target_chance(tokens)) for tokens, chance in law.items())


@pytest.mark.parametrize("capacity", range(6))
def test_emitted_tokens_have_the_targets_law(capacity: int) -> None:
    trees = builders.tree(
        [-1, -1, 0, 0, 2], token_ids=[0, 2, 1, 2, 0], logprobs=[-0.2, -0.9, -0.3, -0.8, -0.1]
    )

    law = emitted_law(trees, capacity, accept)

    assert sum(law.values()) == pytest.approx(1.0)
    assert is_the_targets_law(law)


def test_the_law_rejects_a_broken_acceptance_rule() -> None:
    def accept_first_child(layout: VerifyLayout, sampled: torch.Tensor) -> Acceptance:
        child = int(layout.first_child[0])
        drawn = sampled.clone()
        if sampled[0] == 1:  # takes a draft that the target did not draw
            drawn[0] = layout.token_ids[child]
        return accept(layout, drawn)

    trees = builders.tree([-1, 0], token_ids=[0, 1])

    assert is_the_targets_law(emitted_law(trees, 2, accept))
    assert not is_the_targets_law(emitted_law(trees, 2, accept_first_child))
