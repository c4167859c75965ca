"""Scores are probabilities that never rise along a path, whatever the draft reports."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
import torch

from sglang_tetris.core.calibration import Calibration, score
from sglang_tetris.core.candidates import CandidateTrees
from tests import builders, oracles

GARBAGE = (math.nan, math.inf, -math.inf, 3.0, 0.0, -0.0, -1e-30, -200.0)


def random_calibration(seed: int) -> Calibration:
    generator = torch.Generator().manual_seed(seed)
    shape = (builders.NUM_SOURCES, 1 + seed % 4)
    return Calibration(
        slopes=torch.rand(shape, generator=generator) * 3,
        intercepts=torch.randn(shape, generator=generator),
    )


def with_garbage(trees: CandidateTrees, seed: int) -> CandidateTrees:
    generator = torch.Generator().manual_seed(seed)
    values = torch.tensor(GARBAGE)
    garbage = values[torch.randint(len(values), trees.parents.shape, generator=generator)]
    is_hit = (torch.rand(trees.parents.shape, generator=generator) < 0.4) & ~trees.is_padding
    return dataclasses.replace(
        trees, path_logprobs=torch.where(is_hit, garbage, trees.path_logprobs)
    )


def parent_scores(trees: CandidateTrees, scores: torch.Tensor) -> torch.Tensor:
    with_root = torch.cat((torch.ones(trees.num_requests, 1), scores), dim=1)
    return with_root.gather(1, trees.parents + 1)


def test_a_score_is_the_product_of_calibrated_probabilities_along_the_path() -> None:
    trees = builders.tree(
        [-1, 0, 0], logprobs=[math.log(0.8), math.log(0.5), math.log(0.2)], sources=[0, 0, 1]
    )
    calibration = Calibration(
        slopes=torch.tensor([[1.0, 2.0], [1.0, 0.0]]),
        intercepts=torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]]),
    )

    scores = score(trees, calibration)

    # 0.5 has odds 1, squared and times 3: 3/4. Slope 0 leaves the intercept: 1/2.
    assert scores.tolist()[0] == pytest.approx([0.8, 0.8 * 0.75, 0.8 * 0.5])
    assert scores.dtype == torch.float32


def test_scores_agree_with_the_loop_over_nodes() -> None:
    for seed in range(800):
        trees = builders.random_trees(seed)
        calibration = random_calibration(seed)

        scores = score(trees, calibration)

        expected = oracles.score(
            trees, calibration.slopes.tolist(), calibration.intercepts.tolist()
        )
        assert scores.tolist() == [pytest.approx(row, rel=1e-5, abs=1e-37) for row in expected]


def test_identity_gives_the_draft_probability_of_the_path() -> None:
    for seed in range(800):
        trees = builders.random_trees(seed, max_nodes=16)

        scores = score(trees, Calibration.identity(builders.NUM_SOURCES, 16))

        expected = trees.path_logprobs.exp()
        torch.testing.assert_close(
            scores.where(~trees.is_padding, 0.0), expected, rtol=2e-6, atol=1e-37
        )


@pytest.mark.parametrize("length", [1, 3, 8])
def test_equal_chains_get_equal_scores_wherever_they_stand(length: int) -> None:
    for seed in range(100):
        rng = random.Random(seed)
        logprobs = [math.log(1.0 - rng.random()) for _ in range(length)]
        trees = builders.forest(*[builders.chain(length, logprobs=logprobs)] * (1 + seed % 40))

        scores = score(trees, random_calibration(seed))

        assert (scores == scores[0]).all()


@pytest.mark.parametrize("tangle", [False, True])
def test_a_score_is_a_probability_and_never_above_its_parents(tangle: bool) -> None:
    for seed in range(1000):
        trees = builders.random_trees(seed, max_nodes=12)
        trees = with_garbage(trees, seed) if tangle else trees

        scores = score(trees, random_calibration(seed))

        real = scores[~trees.is_padding]
        assert ((real >= 0) & (real <= 1)).all()
        assert (scores[trees.is_padding] == -math.inf).all()
        assert (scores <= parent_scores(trees, scores)).all()


def test_what_is_not_a_number_is_never_accepted() -> None:
    trees = builders.chain(4, logprobs=[-1.0, math.nan, 0.0, 0.0])

    assert score(trees, Calibration.identity(1, 4))[0, 1:].tolist() == [0.0, 0.0, 0.0]


def test_a_calibration_that_is_not_a_number_accepts_nothing() -> None:
    trees = builders.chain(2, logprobs=[-1.0, -1.0])
    calibration = Calibration(
        slopes=torch.tensor([[1.0, math.nan]]), intercepts=torch.tensor([[0.0, 0.0]])
    )

    assert score(trees, calibration)[0].tolist() == [pytest.approx(math.exp(-1)), 0.0]


@pytest.mark.parametrize("slope", [0.5, 0.0, -1.0])
def test_an_impossible_token_stays_impossible(slope: float) -> None:
    trees = builders.tree([-1, -1], logprobs=[-math.inf, -30.0])
    calibration = Calibration(slopes=torch.tensor([[slope]]), intercepts=torch.tensor([[40.0]]))

    assert score(trees, calibration)[0].tolist() == [0.0, 1.0]


def test_a_path_that_rises_by_rounding_is_certain() -> None:
    trees = builders.chain(3, logprobs=[-1.0, 1e-6, -1.0])

    scores = score(trees, Calibration.identity(1, 3))[0].tolist()

    assert scores == pytest.approx([math.exp(-1), math.exp(-1), math.exp(-2)], rel=1e-5)


def test_certainty_can_be_doubted_but_the_identity_does_not() -> None:
    trees = builders.chain(64)
    doubtful = Calibration(slopes=torch.tensor([[0.0]]), intercepts=torch.tensor([[0.0]]))

    assert score(trees, Calibration.identity(1, 4))[0].tolist() == [1.0] * 64
    assert score(trees, doubtful)[0, :3].tolist() == [0.5, 0.25, 0.125]


def test_depths_beyond_the_calibration_use_its_last_column() -> None:
    trees = builders.chain(4, logprobs=[math.log(0.5)] * 4)
    calibration = Calibration(
        slopes=torch.ones(1, 2), intercepts=torch.tensor([[0.0, math.log(3.0)]])
    )

    assert score(trees, calibration)[0].tolist() == pytest.approx(
        [0.5, 0.5 * 0.75, 0.5 * 0.75**2, 0.5 * 0.75**3]
    )


def test_a_known_depth_changes_nothing_but_the_work() -> None:
    for seed in range(100):
        trees = builders.random_trees(seed)
        calibration = random_calibration(seed)
        max_depth = int(trees.depths.max()) if trees.num_candidates else 0

        assert torch.equal(
            score(trees, calibration, max_depth=max_depth), score(trees, calibration)
        )


@pytest.mark.parametrize("num_requests", [0, 3])
def test_requests_without_candidates_have_no_scores(num_requests: int) -> None:
    scores = score(CandidateTrees.empty(num_requests), Calibration.identity(1, 4))

    assert scores.shape == (num_requests, 0)
