"""A wrong rule: at the end of a path the bonus is drawn from the parent's distribution."""

from __future__ import annotations

import torch

from sglang_tetris.core.layout import VerifyLayout
from sglang_tetris.engine import sampling
from sglang_tetris.engine.drafting import DraftRequests


def register() -> None:
    sample = sampling.sample

    def sample_from_parents(
        requests: DraftRequests, layout: VerifyLayout, logits: torch.Tensor
    ) -> torch.Tensor:
        is_end = (layout.first_child < 0) & (layout.parents >= 0)
        above = logits[layout.parents.clamp(min=0)]
        return sample(requests, layout, torch.where(is_end[:, None], above, logits))

    sampling.sample = sample_from_parents
