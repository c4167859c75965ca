"""How likely a candidate is to be accepted, on one scale for all draft sources.

The draft probability of a node given its parent is calibrated per source and depth (Platt
scaling on its logit), and a node's score is the product of these along its path. How the
slopes and intercepts are learnt is not decided here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_tetris.core.candidates import CandidateTrees

# The logit of a certain token. Certainty is mostly rounding (a float32 softmax is 1 from 17 on),
# so calibration must be able to doubt it; but the identity leaves it at 1 in float32.
MAX_LOGIT = 24.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibration:
    """Acceptance estimate of a node given its parent: sigmoid(slope * logit + intercept)."""

    slopes: torch.Tensor  # [num_sources, max_depth] float32; column 0 is depth 1
    intercepts: torch.Tensor  # [num_sources, max_depth] float32

    @property
    def max_depth(self) -> int:
        """Depths with a column of their own; deeper nodes use the last one."""
        return self.slopes.shape[1]

    @classmethod
    def identity(
        cls, num_sources: int, max_depth: int, device: torch.device | str = "cpu"
    ) -> Calibration:
        """Return the calibration that takes draft probabilities at their word."""
        shape = (num_sources, max_depth)
        return cls(
            slopes=torch.ones(shape, device=device), intercepts=torch.zeros(shape, device=device)
        )


def score(
    trees: CandidateTrees, calibration: Calibration, *, max_depth: int | None = None
) -> torch.Tensor:
    """Return the estimated probability that a node and all its ancestors are accepted.

    [num_requests, num_nodes] float32 in [0, 1], padding -inf. A child never outranks its parent,
    whatever the log-probabilities. ``max_depth`` bounds the depth of the trees where the caller
    knows a tighter bound than ``num_nodes``.
    """
    acceptance = _conditional_acceptance(trees, calibration)
    # Column 0 is the root, which is its own parent and certain.
    with_root = torch.cat((acceptance.new_ones((trees.num_requests, 1)), acceptance), dim=1)
    parents = torch.cat((trees.parents.new_zeros((trees.num_requests, 1)), trees.parents + 1), 1)

    # After d rounds the depths up to d + 1 are final. Each is its parent's final value times at
    # most 1, and neither the product nor the rounding to float32 can turn that order around.
    scores = with_root
    for _ in range(1, trees.num_nodes if max_depth is None else max_depth):
        scores = with_root * scores.gather(1, parents)
    return scores[:, 1:].float().masked_fill(trees.is_padding, -torch.inf)


def _conditional_acceptance(trees: CandidateTrees, calibration: Calibration) -> torch.Tensor:
    """Return the calibrated probability of each node given its parent, float64 in [0, 1]."""
    # In float64 the differences are exact enough for equal paths to stay equal.
    path_logprobs = trees.path_logprobs.double()
    with_root = torch.cat((path_logprobs.new_zeros((trees.num_requests, 1)), path_logprobs), dim=1)
    logprobs = (path_logprobs - with_root.gather(1, trees.parents + 1)).clamp(max=0.0)
    logits = (logprobs - torch.log(-torch.expm1(logprobs))).clamp(max=MAX_LOGIT)

    sources = trees.sources.clamp(min=0)
    columns = (trees.depths - 1).clamp(0, calibration.max_depth - 1)
    calibrated = (
        calibration.slopes[sources, columns] * logits + calibration.intercepts[sources, columns]
    )
    # NOTE: not torch.sigmoid: on the CPU its value depends on where in the tensor it stands (the
    # vectorised part and the remainder differ in the last bit), and ties must survive.
    acceptance = 1.0 / (1.0 + torch.exp(-calibrated))
    # NaN fails both comparisons: what is not a probability is never accepted.
    return torch.where((logprobs > -torch.inf) & (acceptance >= 0.0), acceptance, 0.0)
