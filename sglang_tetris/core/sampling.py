"""Which token a row draws: temperature, top-k, top-p, min-p, and one number in [0, 1).

The law is SGLang's (layers/sampler.py, ``top_k_top_p_min_p_sampling_from_probs_torch``): with the
probabilities in falling order, a token stays if it is among the first ``top_k``, if those before
it have no more than ``top_p`` of the mass, and if it has at least ``min_p`` of the largest; what
stays is drawn in proportion. Equal probabilities are ordered by token id, so the law of a row
depends on no sorting algorithm. The draw inverts the distribution function in token-id order:
a row costs one number, not one per vocabulary entry (benchmarks/bench_sampling.py compares).

Knows nothing of penalties or grammars: they have been at work on the logits before.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

GREEDY_TOP_K = 1  # SGLang turns temperature 0 into this (sampling_params.py)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Filters:
    """What each row asks for. A row with ``top_k`` 1 is greedy, whatever else it asks."""

    temperatures: torch.Tensor  # [num_rows] float32, above 0
    top_ks: torch.Tensor  # [num_rows] integers, at least 1
    top_ps: torch.Tensor  # [num_rows] float32, in (0, 1]
    min_ps: torch.Tensor  # [num_rows] float32, in [0, 1]

    def of_rows(self, rows: torch.Tensor) -> Filters:
        """Return the filters of ``rows``, ids or a mask, in their order."""
        return Filters(
            temperatures=self.temperatures[rows],
            top_ks=self.top_ks[rows],
            top_ps=self.top_ps[rows],
            min_ps=self.min_ps[rows],
        )

    @property
    def is_greedy(self) -> torch.Tensor:
        """Whether a row takes its largest logit, [num_rows] bool."""
        return self.top_ks <= GREEDY_TOP_K

    @property
    def effective_temperatures(self) -> torch.Tensor:
        """What logits are divided by, [num_rows, 1] float32: 1 in a greedy row."""
        return torch.where(self.is_greedy, 1.0, self.temperatures)[:, None]

    def scale(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits [num_rows, vocab_size] over the temperatures.

        Log-probabilities are those of the softmax of this, as in SGLang.
        """
        return logits / self.effective_temperatures


def draw(logits: torch.Tensor, filters: Filters, numbers: torch.Tensor) -> torch.Tensor:
    """Return one token id per row, [num_rows] int64.

    ``logits`` is [num_rows, vocab_size] float32 and ``numbers`` [num_rows] float64 in [0, 1).
    A row without any probability that is a number takes its largest logit.
    """
    kept = kept_probs(filters.scale(logits).softmax(dim=-1), filters).double()
    mass = kept.cumsum(dim=-1)
    total = mass[:, -1:]
    drawn = torch.searchsorted(mass, numbers[:, None] * total, right=True)
    takes_largest = filters.is_greedy | ~(total.squeeze(-1) > 0)
    return torch.where(takes_largest, largest(logits), drawn.squeeze(-1))


def largest(logits: torch.Tensor) -> torch.Tensor:
    """Return each row's largest logit's token id, the first among equals, [num_rows] int64."""
    return logits.argmax(dim=-1)


def kept_probs(probs: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Return probabilities [num_rows, vocab_size] with 0 for every token that is filtered out.

    NaN counts as 0. Not rescaled to a sum of 1.
    """
    probs = probs.nan_to_num(nan=0.0)
    falling, token_ids = probs.sort(dim=-1, descending=True, stable=True)
    before = falling.double().cumsum(dim=-1) - falling.double()
    ranks = torch.arange(probs.shape[-1], device=probs.device)
    stays = ranks < filters.top_ks[:, None]
    # The probabilities' own sum is 1 up to rounding only: a top-p of 1 must not look at it.
    top_ps = torch.where(filters.top_ps < 1, filters.top_ps.double(), torch.inf)
    stays &= before <= top_ps[:, None]
    stays &= falling >= falling[:, :1] * filters.min_ps[:, None]
    return torch.zeros_like(probs).scatter_(-1, token_ids, torch.where(stays, falling, 0.0))
