"""Which candidates fill the capacity: the best of the whole batch, not of each request.

Knows nothing of what a score means, except that a child's is never above its parent's.
"""

from __future__ import annotations

import torch

from sglang_tetris.core.candidates import CandidateTrees


def select(scores: torch.Tensor, trees: CandidateTrees, capacity: int) -> torch.Tensor:
    """Return the ids of the ``capacity`` best candidates, or of all if there are fewer.

    Ids are request * num_nodes + node, [num_selected] int64, ascending. Their number is known on
    the host. Ties go to the shallower node, then the lower request, then the lower node.
    """
    if capacity < 0:
        raise ValueError(f"capacity must be at least 0, got {capacity}")
    assert scores.shape == trees.token_ids.shape, "one score per node"
    num_selected = min(capacity, trees.num_candidates)

    # Scores never rise along a path and ties go to the shallower node, so an ancestor stands
    # before its descendants in this order, and every prefix of it is ancestor-closed. Padding
    # stands last: it is the deepest of those that have no chance.
    no_chance = trees.is_padding | scores.isnan()
    deepest = trees.num_nodes + 1
    depths = torch.where(trees.is_padding, deepest, trees.depths).flatten()
    by_depth = torch.argsort(depths, stable=True)
    ranked = torch.where(no_chance, -torch.inf, scores).flatten()[by_depth]
    by_score = torch.argsort(ranked, descending=True, stable=True)
    return by_depth[by_score[:num_selected]].sort().values
