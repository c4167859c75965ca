"""Chi-square tests: how likely it is that counts this uneven come from the law in question."""

from __future__ import annotations

import torch


def chance(statistic: float, degrees: int) -> float:
    """Return the probability of a statistic at least this large under the law."""
    halves = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def of_law(counts: torch.Tensor, law: torch.Tensor) -> float:
    """Return the chance of ``counts`` [num_cells] under probabilities ``law``, all above 0."""
    expected = law.double() * counts.sum()
    statistic = float(((counts.double() - expected) ** 2 / expected).sum())
    return chance(statistic, counts.numel() - 1)


def of_uniform(counts: torch.Tensor) -> float:
    """Return the chance of ``counts`` if every cell is equally likely."""
    return of_law(counts, torch.full_like(counts, 1 / counts.numel(), dtype=torch.float64))


def of_same_law(left: torch.Tensor, right: torch.Tensor) -> float:
    """Return the chance of two samples' counts, equally many each, if both have one law.

    Cells that neither sample hit do not count.
    """
    assert left.sum() == right.sum(), "samples of one size"
    is_hit = (left + right) > 0
    if int(is_hit.sum()) == 1:
        return 1.0
    a, b = left[is_hit].double(), right[is_hit].double()
    return chance(float(((a - b) ** 2 / (a + b)).sum()), int(is_hit.sum()) - 1)
