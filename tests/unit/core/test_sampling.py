"""The draw follows its definition: filters by falling probability, then one number by token id."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
import torch

from sglang_tetris.core.sampling import Filters, draw, kept_probs
from tests import builders, oracles

LAST = 1 - 2**-53  # the largest number that there is
OPTIONS: dict[str, list[float]] = {
    "temperature": [0.2, 0.7, 1.5],
    "top_k": [2, 3, 10, 1000],
    "top_p": [0.05, 0.5, 0.9, 0.999],
    "min_p": [0.01, 0.2, 0.7, 1.0],
}
DYADIC = [0.25, 0.125, 0.0625, 0.5, 0.0625]  # in no order; every sum of them is exact


def options_of(filters: Filters, row: int) -> dict[str, Any]:
    """Return what a row asks of the oracle."""
    return {
        "top_k": int(filters.top_ks[row]),
        "top_p": float(filters.top_ps[row]),
        "min_p": float(filters.min_ps[row]),
    }


def expected(logits: torch.Tensor, filters: Filters, numbers: torch.Tensor) -> list[int]:
    """Return the slow twin's tokens; the softmax is taken for granted."""
    probs = filters.scale(logits).softmax(dim=-1).tolist()
    greedy = logits.tolist()
    return [
        greedy[row].index(max(greedy[row]))
        if filters.top_ks[row] == 1
        else oracles.draw(probs[row], float(numbers[row]), **options_of(filters, row))
        for row in range(len(probs))
    ]


def kept_ids(probs: list[float], **options: Any) -> list[int]:
    row = kept_probs(torch.tensor([probs]), builders.filters(1, **options))[0]
    return row.nonzero().flatten().tolist()


def rows_of(seed: int, num_rows: int, vocab_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return seeded logits, quantised every other time, and numbers."""
    logits, _, numbers = builders.random_rows(seed, num_rows, vocab_size)
    return logits, numbers


@pytest.mark.parametrize(
    "names",
    [names for count in (1, 2, 4) for names in itertools.combinations(OPTIONS, count)],
    ids=" and ".join,
)
def test_each_option_and_each_pair_follows_the_definition(names: tuple[str, ...]) -> None:
    for seed, vocab_size in enumerate([2, 3, 8, 23]):
        choices = list(itertools.product(*(OPTIONS[name] for name in names)))[::-1][:64]
        logits, numbers = rows_of(seed, len(choices), vocab_size)
        asked = dict(zip(names, map(list, zip(*choices, strict=True)), strict=True))
        filters = builders.filters(len(choices), **asked)

        drawn = draw(logits, filters, numbers)

        assert drawn.tolist() == expected(logits, filters, numbers)


@pytest.mark.parametrize("seed", range(40))
def test_mixed_rows_follow_the_definition(seed: int) -> None:
    vocab_size = random.Random(seed).choice([1, 2, 5, 16, 17, 40])
    logits, filters, numbers = builders.random_rows(seed, 24, vocab_size)

    drawn = draw(logits, filters, numbers)

    assert drawn.tolist() == expected(logits, filters, numbers)
    assert drawn.dtype == torch.int64


def test_a_draw_by_hand() -> None:
    logits = torch.tensor([2.0, 1.0, 2.0, -math.inf, 1.0]).mul(math.log(2)).expand(6, 5)
    numbers = torch.tensor([0.0, 0.33, 0.34, 0.51, 0.67, 0.99], dtype=torch.float64)

    # Probabilities 1/3, 1/6, 1/3, 0, 1/6: the first third of the numbers is token 0's.
    assert draw(logits, builders.filters(6), numbers).tolist() == [0, 0, 1, 2, 2, 4]
    # Tokens 0 and 2 are left.
    assert draw(logits, builders.filters(6, top_k=2), numbers).tolist() == [0, 0, 0, 2, 2, 2]


def test_probabilities_are_a_softmax_over_the_temperature() -> None:
    logits, _ = rows_of(0, 50, 20)
    temperatures = [0.1, 0.5, 1.0, 2.0, 10.0] * 10

    probs = builders.filters(50, temperature=temperatures).scale(logits).softmax(dim=-1)

    for row, temperature in enumerate(temperatures):
        weights = [math.exp(logit / temperature) for logit in logits[row].tolist()]
        law = [weight / math.fsum(weights) for weight in weights]
        assert probs[row].tolist() == pytest.approx(law, rel=1e-5, abs=1e-12)


@pytest.mark.parametrize("vocab_size", [5, 6, 7, 8])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"temperature": 1.7, "top_k": 4, "top_p": 0.8, "min_p": 0.1},
    ],
    ids=lambda options: " and ".join(options) or "nothing",
)
def test_over_all_numbers_a_token_comes_as_often_as_its_share(
    vocab_size: int, options: dict[str, Any]
) -> None:
    num_numbers = 10_000
    logits, _ = rows_of(vocab_size, 1, vocab_size)
    numbers = (torch.arange(num_numbers, dtype=torch.float64) + 0.5) / num_numbers
    one = builders.filters(1, **options)
    every = builders.filters(num_numbers, **options)

    drawn = draw(logits.expand(num_numbers, vocab_size), every, numbers)

    frequencies = drawn.bincount(minlength=vocab_size).double() / num_numbers
    kept = kept_probs(one.scale(logits).softmax(dim=-1), one)[0].double()
    assert float((frequencies - kept / kept.sum()).abs().max()) <= 1.01 / num_numbers
    assert bool((drawn.diff() >= 0).all()), "larger numbers draw larger ids"


# Ties and boundaries, with probabilities whose sums are exact.


@pytest.mark.parametrize(("top_k", "left"), [(1, [0]), (2, [0, 1]), (5, [0, 1, 2, 3, 4])])
def test_equal_probabilities_are_cut_by_token_id(top_k: int, left: list[int]) -> None:
    assert kept_ids([0.125] * 8, top_k=top_k) == left


def test_a_tie_at_the_cut_is_decided_by_token_id_after_all_larger_ones() -> None:
    probs = [0.125, 0.25, 0.125, 0.25, 0.125, 0.125]

    assert kept_ids(probs, top_k=2) == [1, 3]
    assert kept_ids(probs, top_k=3) == [0, 1, 3]
    assert kept_ids(probs, top_k=4) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("top_p", "left"),
    [
        (0.499, [3]),
        (0.5, [0, 3]),  # those before token 0 have exactly 0.5, which is no more
        (0.501, [0, 3]),
        (0.75, [0, 1, 3]),
        (0.875, [0, 1, 2, 3]),
        (0.9375, [0, 1, 2, 3, 4]),
    ],
)
def test_a_token_stays_when_those_before_it_have_exactly_top_p(
    top_p: float, left: list[int]
) -> None:
    assert kept_ids(DYADIC, top_p=top_p) == left
    assert oracles.kept(DYADIC, top_k=9, top_p=top_p, min_p=0.0) == left


@pytest.mark.parametrize(("top_p", "num_left"), [(0.25, 3), (0.5, 5), (0.874, 7), (0.875, 8)])
def test_top_p_cuts_equal_logits_by_token_id(top_p: float, num_left: int) -> None:
    numbers = (torch.arange(num_left, dtype=torch.float64) + 0.5) / num_left
    filters = builders.filters(num_left, top_p=top_p)

    drawn = draw(torch.full((num_left, 8), -3.0), filters, numbers)

    assert drawn.tolist() == list(range(num_left))


@pytest.mark.parametrize(
    ("min_p", "left"),
    [(0.5, [0, 3]), (0.501, [3]), (0.25, [0, 1, 3]), (0.125, [0, 1, 2, 3, 4]), (1.0, [3])],
)
def test_a_token_that_has_exactly_min_p_of_the_largest_stays(min_p: float, left: list[int]) -> None:
    assert kept_ids(DYADIC, min_p=min_p) == left
    assert oracles.kept(DYADIC, top_k=9, top_p=1.0, min_p=min_p) == left


def test_min_p_of_1_leaves_every_largest_token() -> None:
    assert kept_ids([0.25, 0.125, 0.25, 0.125, 0.25], min_p=1.0) == [0, 2, 4]


def test_min_p_is_measured_before_anything_is_cut() -> None:
    assert kept_ids(DYADIC, min_p=0.25, top_p=0.5) == [0, 3]
    assert kept_ids(DYADIC, min_p=0.25, top_k=2) == [0, 3]


def test_a_top_p_of_1_cuts_nothing() -> None:
    tail = [2.0**-26] * 4  # together less than what a float32 of 1 can hold

    assert kept_ids([1.0, *tail]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("number", [0.0, 0.3, 0.5, LAST])
def test_a_number_on_a_boundary_belongs_to_the_token_after_it(number: float) -> None:
    logits = torch.zeros(1, 4)
    numbers = torch.tensor([number], dtype=torch.float64)

    drawn = draw(logits, builders.filters(1), numbers)

    assert drawn.item() == int(number * 4)


# Extremes.


@pytest.mark.parametrize("temperature", [1e-3, 1.0, 50.0])
def test_a_top_k_of_1_takes_the_first_largest_logit(temperature: float) -> None:
    logits, numbers = rows_of(1, 200, 5)  # quantised: many ties
    filters = builders.filters(200, top_k=1, temperature=temperature, top_p=0.01, min_p=0.9)

    drawn = draw(logits, filters, numbers)

    assert drawn.tolist() == [row.index(max(row)) for row in logits.tolist()]


def test_a_temperature_does_not_scale_a_greedy_row() -> None:
    logits, _ = rows_of(0, 3, 4)
    filters = builders.filters(3, top_k=[1, 2, 1], temperature=0.5)

    scaled = filters.scale(logits)

    assert torch.equal(scaled, torch.stack((logits[0], logits[1] / 0.5, logits[2])))


@pytest.mark.parametrize("top_k", [7, 8, 1000, builders.TOP_K_ALL])
def test_a_top_k_beyond_the_vocabulary_cuts_nothing(top_k: int) -> None:
    logits, numbers = rows_of(2, 300, 7)

    drawn = draw(logits, builders.filters(300, top_k=top_k), numbers)

    assert torch.equal(drawn, draw(logits, builders.filters(300), numbers))


def test_a_vocabulary_of_one_token_has_one_answer() -> None:
    logits, filters, numbers = builders.random_rows(0, 60, 1)
    logits[::3] = -math.inf
    numbers[::2] = LAST

    assert draw(logits, filters, numbers).tolist() == [0] * 60


@pytest.mark.parametrize("number", [0.0, 0.25, 0.5, LAST])
@pytest.mark.parametrize("option", [{}, {"top_k": 4}, {"top_p": 0.9999}, {"min_p": 0.001}])
@pytest.mark.parametrize("masked", [[0], [5], [0, 1, 4, 5], [0, 1, 2, 3, 4]], ids=str)
def test_a_masked_token_is_never_drawn(
    number: float, option: dict[str, Any], masked: list[int]
) -> None:
    logits = torch.arange(6, dtype=torch.float32).sin().expand(30, 6).clone()
    logits *= torch.linspace(0.01, 40, 30)[:, None]
    logits[:, masked] = -math.inf
    numbers = torch.full((30,), number, dtype=torch.float64)

    drawn = draw(logits, builders.filters(30, **option), numbers)

    assert not set(drawn.tolist()) & set(masked)


@pytest.mark.parametrize("number", [0.0, LAST])
def test_a_token_that_is_filtered_out_is_never_drawn(number: float) -> None:
    logits = torch.tensor([[0.0, 9.0, 1.0, 8.0, 0.5]]).expand(3, 5)
    filters = builders.filters(3, top_k=[2, 9, 9], top_p=[1.0, 0.8, 1.0], min_p=[0.0, 0.0, 0.3])

    drawn = draw(logits, filters, torch.full((3,), number, dtype=torch.float64))

    assert drawn.tolist() == [1 if number == 0.0 else 3] * 3


@pytest.mark.parametrize("option", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_a_row_without_a_distribution_takes_its_largest_logit(option: dict[str, Any]) -> None:
    nan, inf = math.nan, math.inf
    logits = torch.tensor([[0, nan, 2, 1], [-inf] * 4, [nan] * 4, [1, inf, 3, inf], [0, 1, 99, 2]])
    numbers = torch.full((5,), 0.7, dtype=torch.float64)

    drawn = draw(logits, builders.filters(5, **option), numbers)

    assert drawn.tolist() == [1, 0, 0, 1, 2]  # torch's argmax takes the first NaN for the largest


def test_no_row_gives_no_token() -> None:
    drawn = draw(torch.empty(0, 7), builders.filters(0), torch.empty(0, dtype=torch.float64))

    assert drawn.shape == (0,)


# Rows are independent, bit for bit.


@pytest.mark.parametrize("vocab_size", [1, 7, 16, 100, 1000])
def test_a_row_draws_the_same_alone_and_in_any_company(vocab_size: int) -> None:
    logits, filters, numbers = builders.random_rows(vocab_size, 48, vocab_size)
    logits[5], logits[17, : vocab_size // 2 + 1] = math.nan, -math.inf
    generator = torch.Generator().manual_seed(0)
    together = draw(logits, filters, numbers)

    for count in (1, 1, 2, 3, 7, 16, 31, 47):
        rows = torch.randperm(48, generator=generator)[:count]
        part = draw(logits[rows], filters.of_rows(rows), numbers[rows])
        assert torch.equal(part, together[rows])
    for row in range(48):
        rows = torch.tensor([row])
        alone = draw(logits[rows], filters.of_rows(rows), numbers[rows])
        assert torch.equal(alone, together[rows])


def test_the_filters_of_rows_are_chosen_by_ids_or_by_a_mask() -> None:
    _, filters, _ = builders.random_rows(3, 10, 4)
    mask = torch.arange(10) % 3 == 0

    by_mask, by_ids = filters.of_rows(mask), filters.of_rows(torch.tensor([0, 3, 6, 9]))

    for name in ("temperatures", "top_ks", "top_ps", "min_ps"):
        assert torch.equal(getattr(by_mask, name), getattr(filters, name)[mask])
        assert torch.equal(getattr(by_ids, name), getattr(by_mask, name))
