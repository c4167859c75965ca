"""The noise is SplitMix64, uniform, and different for every seed and position."""

from __future__ import annotations

import random

import pytest
import torch

from sglang_tetris.core.noise import next_seed, uniforms
from tests import oracles
from tests.support import chi_square

INT64 = 2**63
EXTREMES = [-INT64, -INT64 + 1, -(2**32), -2, -1, 0, 1, 2, 42, 2**31, 2**32, INT64 - 2, INT64 - 1]
UNLIKELY = 1e-4  # each test below makes one comparison or a few, all with fixed seeds
NUM_CELLS = 32  # of each axis


def numbers_of(seeds: list[int], positions: list[int]) -> list[float]:
    numbers: list[float] = uniforms(torch.tensor(seeds), torch.tensor(positions)).tolist()
    return numbers


def square(num_seeds: int, num_positions: int, *, first_seed: int = 0) -> torch.Tensor:
    """Return the numbers of every seed and position, [num_seeds, num_positions]."""
    seeds = torch.arange(first_seed, first_seed + num_seeds).repeat_interleave(num_positions)
    positions = torch.arange(num_positions).repeat(num_seeds)
    return uniforms(seeds, positions).view(num_seeds, num_positions)


def chance_of_pairs(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return how likely pairs this uneven are if both numbers are uniform and independent."""
    cells = (left * NUM_CELLS).long() * NUM_CELLS + (right * NUM_CELLS).long()
    return chi_square.of_uniform(cells.flatten().bincount(minlength=NUM_CELLS**2))


def test_the_numbers_are_those_of_plain_integers() -> None:
    rng = random.Random(0)
    seeds = [rng.randrange(-INT64, INT64) for _ in range(2000)]
    positions = [rng.randrange(1 << rng.randrange(1, 40)) for _ in range(2000)]

    numbers = numbers_of(seeds, positions)

    assert numbers == [oracles.uniform(*pair) for pair in zip(seeds, positions, strict=True)]


def test_the_extremes_of_the_integers_are_seeds_and_positions_too() -> None:
    pairs = [(seed, position) for seed in EXTREMES for position in EXTREMES]

    numbers = numbers_of(*map(list, zip(*pairs, strict=True)))

    assert numbers == [oracles.uniform(*pair) for pair in pairs]
    assert all(0.0 <= number < 1.0 for number in numbers)


def test_the_positions_of_a_seed_walk_along_one_generator() -> None:
    outputs = oracles.splitmix64(0, 500)  # the finaliser leaves 0 as it is

    numbers = numbers_of([0] * 500, list(range(500)))

    assert numbers == [(output >> 11) / 2**53 for output in outputs]
    assert numbers[0] == (0xE220A8397B1DCDAF >> 11) / 2**53  # published with the generator


def test_the_next_seed_is_the_first_output_from_this_one() -> None:
    rng = random.Random(1)
    seeds = [*EXTREMES, *(rng.randrange(-INT64, INT64) for _ in range(500))]

    following = [next_seed(seed) for seed in seeds]

    assert [seed % 2**64 for seed in following] == [
        oracles.splitmix64(seed % 2**64, 1)[0] for seed in seeds
    ]
    assert all(-INT64 <= seed < INT64 for seed in following)
    assert next_seed(0) % 2**64 == 0xE220A8397B1DCDAF


def test_a_number_depends_on_its_own_seed_and_position_only() -> None:
    rng = random.Random(2)
    seeds = torch.tensor([rng.randrange(-INT64, INT64) for _ in range(97)])
    positions = torch.tensor([rng.randrange(10_000) for _ in range(97)])
    order = torch.randperm(97, generator=torch.Generator().manual_seed(0))

    together = uniforms(seeds, positions)

    assert torch.equal(uniforms(seeds[order], positions[order]), together[order])
    for row in range(97):
        alone = uniforms(seeds[row : row + 1], positions[row : row + 1])
        assert torch.equal(alone, together[row : row + 1])


def test_the_type_of_the_integers_does_not_matter() -> None:
    seeds, positions = torch.arange(-50, 50), torch.arange(100)

    assert torch.equal(uniforms(seeds.int(), positions.int()), uniforms(seeds, positions))


def test_the_numbers_are_float64_and_none_for_no_row() -> None:
    nothing = uniforms(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))

    assert nothing.dtype == torch.float64
    assert nothing.shape == (0,)


def test_all_53_bits_are_in_use() -> None:
    multiples = square(100, 100) * 2.0**53

    assert torch.equal(multiples, multiples.round())
    for bit in range(53):
        share = float((multiples.long() >> bit & 1).double().mean())
        assert share == pytest.approx(0.5, abs=0.025), bit


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(square(1000, 1000), id="seeds and positions"),
        pytest.param(square(1000, 300, first_seed=-500), id="seeds around 0"),
        pytest.param(square(1, 200_000), id="one seed"),
        pytest.param(square(1, 200_000, first_seed=-1), id="one negative seed"),
        pytest.param(square(200_000, 1), id="one position"),
    ],
)
def test_the_numbers_are_uniform(numbers: torch.Tensor) -> None:
    upper = (numbers * 1000).long().flatten().bincount(minlength=1000)
    lower = ((numbers * 2.0**53).long() % 1024).flatten().bincount(minlength=1024)

    for counts in (upper, lower):
        assert UNLIKELY < chi_square.of_uniform(counts) < 1 - UNLIKELY


@pytest.mark.parametrize(
    "step",
    [(0, 1), (1, 0), (1, 1), (1, -1), (2, -1), (0, 2), (16, 0)],
    ids=lambda step: f"{step[0]} seeds and {step[1]} positions on",
)
def test_neighbours_are_independent(step: tuple[int, int]) -> None:
    numbers = square(400, 400)
    down, right = step

    here = numbers[: 400 - down, max(0, -right) : 400 - max(0, right)]
    there = numbers[down:, max(0, right) : 400 + min(0, right)]

    assert UNLIKELY < chance_of_pairs(here, there) < 1 - UNLIKELY


def test_the_samples_of_one_request_are_independent() -> None:
    seeds = range(500)
    positions = torch.arange(300)

    def rows_of(each: list[int]) -> torch.Tensor:
        return uniforms(torch.tensor(each).repeat_interleave(300), positions.repeat(len(each)))

    first = rows_of(list(seeds))
    second = rows_of([next_seed(seed) for seed in seeds])
    third = rows_of([next_seed(next_seed(seed)) for seed in seeds])

    for pair in ((first, second), (first, third), (second, third), (first[:-1], second[1:])):
        assert UNLIKELY < chance_of_pairs(*pair) < 1 - UNLIKELY


def test_no_two_seeds_and_positions_share_a_number() -> None:
    numbers = square(1000, 1000)

    assert bool((numbers.flatten().sort().values.diff() > 0).all())


def test_independence_rejects_a_seed_that_is_only_added() -> None:
    counters = torch.arange(400)[:, None] + torch.arange(400)
    numbers = uniforms(torch.zeros_like(counters), counters)

    assert chance_of_pairs(numbers[1:, :-1], numbers[:-1, 1:]) < 1e-6
