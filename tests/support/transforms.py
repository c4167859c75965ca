"""Tokens turned into numbers that are uniform and independent if the tokens have the right law.

A token covers an interval of [0, 1), as wide as its probability after its prefix, side by side by
token id. A seeded random point of it (the randomised probability integral transform) is uniform
whatever the probabilities were, and independent of the points before it.
"""

from __future__ import annotations

import torch

from tests.support import chi_square

NUM_BINS = 64
NUM_PAIR_BINS = 16  # each way


def points(probs: torch.Tensor, token_ids: torch.Tensor, *, seed: int) -> torch.Tensor:
    """Return a point in [0, 1) for each token.

    ``probs`` is [num_texts, num_tokens, vocab_size] float64, ``token_ids`` [num_texts, num_tokens].
    """
    taken = token_ids[..., None]
    widths = probs.gather(2, taken).squeeze(2)
    starts = (probs.cumsum(dim=2) - probs).gather(2, taken).squeeze(2)
    generator = torch.Generator().manual_seed(seed)
    return starts + widths * torch.rand(widths.shape, generator=generator, dtype=torch.float64)


def chance_of_uniform(values: torch.Tensor) -> float:
    """Return the chance of points this uneven."""
    return chi_square.of_uniform(torch.bincount(_bins(values, NUM_BINS), minlength=NUM_BINS))


def chance_of_independent(values: torch.Tensor) -> float:
    """Return the chance of points [num_texts, num_tokens] that depend so much on the one before.

    Every pair of neighbours counts. They overlap, but under independence the statistic of their
    contingency table has its law all the same (Bartlett, 1951).
    """
    before, after = values[:, :-1], values[:, 1:]
    cells = _bins(before, NUM_PAIR_BINS) * NUM_PAIR_BINS + _bins(after, NUM_PAIR_BINS)
    counts = torch.bincount(cells, minlength=NUM_PAIR_BINS**2).double()
    table = counts.view(NUM_PAIR_BINS, NUM_PAIR_BINS)
    expected = table.sum(dim=1, keepdim=True) * table.sum(dim=0) / table.sum()
    statistic = float(((table - expected) ** 2 / expected).sum())
    return chi_square.chance(statistic, (NUM_PAIR_BINS - 1) ** 2)


def _bins(values: torch.Tensor, num_bins: int) -> torch.Tensor:
    return (values.flatten() * num_bins).long().clamp(max=num_bins - 1)
