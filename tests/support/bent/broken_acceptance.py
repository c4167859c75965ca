"""A wrong rule: the first draft token of every request is accepted whatever the target drew."""

from __future__ import annotations

import torch

from sglang_tetris.core import acceptance
from sglang_tetris.core.acceptance import Acceptance
from sglang_tetris.core.layout import VerifyLayout


def register() -> None:
    accept = acceptance.accept

    def accept_first_draft(layout: VerifyLayout, sampled: torch.Tensor) -> Acceptance:
        child = layout.first_child
        is_bent = (layout.depths == 0) & (child >= 0)
        return accept(layout, torch.where(is_bent, layout.token_ids[child], sampled))

    acceptance.accept = accept_first_draft
