"""A wrong rule: a root's child draws with the root's number, and so on down the path."""

from __future__ import annotations

import dataclasses

import torch

from sglang_tetris.core.layout import VerifyLayout
from sglang_tetris.engine import sampling
from sglang_tetris.engine.drafting import DraftRequests


def register() -> None:
    sample = sampling.sample

    def sample_one_above(
        requests: DraftRequests, layout: VerifyLayout, logits: torch.Tensor
    ) -> torch.Tensor:
        above = (layout.depths - 1).clamp(min=0)  # a number is that of a position
        return sample(requests, dataclasses.replace(layout, depths=above), logits)

    sampling.sample = sample_one_above
