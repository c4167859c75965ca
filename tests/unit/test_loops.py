"""The finder of repetition loops, against the definition."""

from __future__ import annotations

import random

import pytest

from sglang_tetris.loops import GRAM, LoopFinder


def is_inside(answer: list[int], place: int) -> bool:
    """Return whether the token at ``place`` is in a loop, by definition."""
    if place + 1 < GRAM:
        return False
    gram = answer[place + 1 - GRAM : place + 1]
    earlier = [answer[end + 1 - GRAM : end + 1] for end in range(GRAM - 1, place)]
    return earlier.count(gram) >= 2


@pytest.mark.parametrize("seed", range(50))
def test_the_first_token_of_each_step_is_inside_by_definition(seed: int) -> None:
    rng = random.Random(seed)
    period = [rng.randrange(3) for _ in range(rng.randint(1, 14))]
    answer = [rng.randrange(50) for _ in range(rng.randint(0, 20))] + (period * 60)[:60]
    answer += [rng.randrange(50) for _ in range(rng.randint(0, 20))] + period * 3

    finder, place, found, expected = LoopFinder(), 0, [], []
    while place < len(answer):
        step = answer[place : place + rng.randint(1, 7)]
        found.append(finder.append(step))
        expected.append(is_inside(answer, place))
        place += len(step)

    assert found == expected
    assert not all(expected)
    assert any(expected)


def test_a_repeated_token_is_a_loop_from_the_third_gram_on() -> None:
    finder = LoopFinder()

    inside = [finder.append([7]) for _ in range(GRAM + 3)]

    assert inside == [False] * (GRAM + 1) + [True] * 2


def test_a_step_goes_with_its_first_token() -> None:
    finder = LoopFinder()
    finder.append([7] * (GRAM + 1))

    assert finder.append([7, 1, 2, 3])  # the loop's end is inside
    assert not finder.append([4])
