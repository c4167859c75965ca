"""Two defects of the published TETRIS rule, worked out exactly, beside what is done here.

Published: a draft token is *sampled*, scored by its own draft probability, and verified by
rejection sampling if its score is among the best of the batch. At temperature 0 only the second
defect shows.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch

from sglang_tetris.core.acceptance import accept
from sglang_tetris.core.calibration import Calibration, score
from sglang_tetris.core.layout import lay_out
from sglang_tetris.core.selection import select
from tests import builders, oracles

Law = tuple[Fraction, Fraction]

TARGET: Law = (Fraction(7, 10), Fraction(3, 10))
DRAFT: Law = (Fraction(6, 10), Fraction(4, 10))
FIRST: Law = (Fraction(1), Fraction(0))
RIVAL = 0.5  # the draft probability of the other request's token; one of the two is verified


def is_verified(draft_prob: Fraction) -> bool:
    """Say whether the published selection takes this request's token rather than the rival's."""
    logprobs = torch.tensor([[float(draft_prob)], [RIVAL]]).log()
    return oracles.paper_select(logprobs, 1).tolist() == [1, 0]


def emitted_after_draft(token: int, *, verified: bool) -> Law:
    """Return the law of what is emitted once ``token`` was drafted (Leviathan et al., 2023)."""
    if not verified:
        return TARGET
    accepted = min(Fraction(1), TARGET[token] / DRAFT[token])
    missing = [max(Fraction(0), TARGET[t] - DRAFT[t]) for t in (0, 1)]
    law = [(1 - accepted) * share / sum(missing) for share in missing]
    law[token] += accepted
    return law[0], law[1]


def mixed(laws: tuple[Law, Law]) -> Law:
    """Return the law over the drafts, each with its own law of what is emitted."""
    first, second = (sum(DRAFT[draft] * laws[draft][t] for draft in (0, 1)) for t in (0, 1))
    return Fraction(first), Fraction(second)


def test_rejection_sampling_is_exact_as_long_as_every_draft_is_verified() -> None:
    laws = emitted_after_draft(0, verified=True), emitted_after_draft(1, verified=True)

    # The second draft, where it is rejected, makes up for what the first lacks: 0.25 of 0.4.
    assert laws == (FIRST, (Fraction(1, 4), Fraction(3, 4)))
    assert mixed(laws) == TARGET


def test_the_published_rule_emits_the_likelier_token_too_often() -> None:
    # 0.6 beats the rival and 0.4 does not: whether a draft is verified says which token it is.
    verified = is_verified(DRAFT[0]), is_verified(DRAFT[1])
    laws = (
        emitted_after_draft(0, verified=verified[0]),
        emitted_after_draft(1, verified=verified[1]),
    )

    assert verified == (True, False)
    # What follows the second draft is now a draw from the whole target: 0.7 of 0.4, not 0.25.
    assert laws == (FIRST, TARGET)
    assert mixed(laws) == (Fraction(88, 100), Fraction(12, 100))


def test_a_rule_that_sees_the_drafts_largest_probability_only_would_be_exact() -> None:
    verified = is_verified(max(DRAFT))

    laws = emitted_after_draft(0, verified=verified), emitted_after_draft(1, verified=verified)

    assert mixed(laws) == TARGET


@pytest.mark.parametrize(("rival", "is_selected"), [(0.5, True), (0.9, False)])
def test_here_the_draft_is_not_sampled_and_the_law_is_the_targets(
    rival: float, is_selected: bool
) -> None:
    likeliest = DRAFT.index(max(DRAFT))
    trees = builders.forest(
        builders.chain(1, token_ids=[likeliest], logprobs=[math.log(max(DRAFT))]),
        builders.chain(1, logprobs=[math.log(rival)]),
    )
    selected = select(score(trees, Calibration.identity(1, 1)), trees, 1)
    layout = lay_out(trees, selected, torch.zeros(2, dtype=torch.int64), 1)

    law = [Fraction(0), Fraction(0)]
    for draws in itertools.product((0, 1), repeat=layout.num_verify):
        emitted = accept(layout, torch.tensor(draws)).token_ids[0]
        law[int(emitted[0])] += math.prod((TARGET[token] for token in draws), start=Fraction(1))

    assert (0 in selected) == is_selected
    assert tuple(law) == TARGET


def test_between_equal_scores_the_published_rule_verifies_more_than_the_capacity() -> None:
    """A later place may win and the earlier ones not; they are then verified on top."""
    certain = torch.zeros(4, 7)
    trees = builders.forest(*[builders.chain(7)] * 4)

    published = oracles.paper_select(certain, 1)
    ours = select(score(trees, Calibration.identity(1, 7)), trees, 1)

    assert int(published.sum()) > 1
    assert ours.tolist() == [0]
