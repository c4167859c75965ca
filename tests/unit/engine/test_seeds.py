"""Every request gets a seed: the given one, the next for a sibling, a fresh one, or its id's."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_tetris.core.noise import next_seed, uniforms
from sglang_tetris.engine.seeds import give_seed, seeds_of

INT64 = 2**63


def params(seed: int | None, n: int = 1) -> Any:
    return SimpleNamespace(sampling_seed=seed, n=n, temperature=0.7)


def send_samples(shared: Any, count: int) -> list[int]:
    """Give seeds as SGLang sends the samples of one request, and return what each left with."""
    samples = [SimpleNamespace(sampling_params=shared) for _ in range(count)]
    for sample in samples:
        give_seed(sample)  # all of them share one object until here
    return [sample.sampling_params.sampling_seed for sample in samples]


def of(*reqs: tuple[str, int | None]) -> list[int]:
    """Return the seeds of requests by their ids and given seeds."""
    stand_ins = [SimpleNamespace(rid=rid, sampling_params=params(seed)) for rid, seed in reqs]
    seeds: list[int] = seeds_of(stand_ins, "cpu").tolist()
    return seeds


@pytest.mark.parametrize("seed", [0, 42, -1, -INT64, INT64 - 1])
def test_a_given_seed_is_kept(seed: int) -> None:
    shared = params(seed)

    assert send_samples(shared, 1) == [seed]
    assert shared.sampling_seed == seed


@pytest.mark.parametrize("seed", [0, 42, INT64 - 1])
def test_the_first_sample_has_the_given_seed_and_each_further_one_the_next(seed: int) -> None:
    seeds = send_samples(params(seed, n=5), 5)

    assert seeds[0] == seed
    assert seeds[1:] == [next_seed(before) for before in seeds[:-1]]
    assert len(set(seeds)) == 5
    assert seeds == send_samples(params(seed, n=5), 5)


def test_warming_the_prefix_cache_takes_no_samples_seed() -> None:
    shared = params(7, n=2)
    warm_up = SimpleNamespace(sampling_params=copy.copy(shared))  # a copy, as SGLang sends it

    give_seed(warm_up)

    assert send_samples(shared, 2) == [7, next_seed(7)]


def test_without_a_seed_every_sample_gets_a_fresh_one() -> None:
    shared = params(None, n=100)

    seeds = send_samples(shared, 100) + send_samples(params(None, n=100), 100)

    assert len(set(seeds)) == 200
    assert all(-INT64 <= seed < INT64 for seed in seeds)
    assert {seed < 0 for seed in seeds} == {True, False}  # 64 bits, the sign among them
    assert shared.sampling_seed is None


def test_a_request_leaves_with_parameters_of_its_own() -> None:
    shared = params(5, n=2)
    first, second = (SimpleNamespace(sampling_params=shared) for _ in range(2))

    give_seed(first)
    give_seed(second)

    assert first.sampling_params is not second.sampling_params
    assert first.sampling_params.temperature == second.sampling_params.temperature == 0.7
    assert first.sampling_params.n == 2


def test_what_is_no_generation_is_left_alone() -> None:
    embedding = SimpleNamespace(rid="e")

    give_seed(embedding)

    assert vars(embedding) == {"rid": "e"}


def test_the_seeds_of_a_batch_are_those_of_its_requests() -> None:
    seeds = seeds_of(
        [SimpleNamespace(rid="a", sampling_params=params(seed)) for seed in (3, -INT64, 0)], "cpu"
    )

    assert seeds.tolist() == [3, -INT64, 0]
    assert seeds.dtype == torch.int64
    assert seeds_of([], "cpu").shape == (0,)


def test_a_request_past_the_front_door_is_seeded_by_its_id() -> None:
    by_id = of(("a", None), ("b", None), ("a", None), ("a" * 100, None), ("é", None), ("", None))

    assert by_id[0] == by_id[2] == 3405396810240292928  # in every process
    assert len(set(by_id)) == 5
    assert all(-INT64 <= seed < INT64 for seed in by_id)


def test_a_seed_that_was_given_does_not_look_at_the_id() -> None:
    assert of(("a", 9), ("b", 9)) == [9, 9]
    assert of(("a", 0)) == [0]  # a seed of 0 is one


def test_siblings_draw_with_other_numbers_at_every_position() -> None:
    seeds = torch.tensor(send_samples(params(42, n=4), 4))
    positions = torch.arange(1000)

    numbers = uniforms(seeds.repeat_interleave(1000), positions.repeat(4))

    assert len(set(numbers.tolist())) == 4000
