"""The padded twin of the ragged layout: every candidate is verified, the deselected are masked.

It must accept exactly what the ragged layout accepts; it is the oracle for true compaction.
"""

from __future__ import annotations

import dataclasses

import torch

from sglang_tetris.core import acceptance, layout
from sglang_tetris.core.acceptance import Acceptance
from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.layout import VerifyLayout

NO_TOKEN = -2  # equals no draw of the target


def register() -> None:
    lay_out, accept = layout.lay_out, acceptance.accept
    selected: list[torch.Tensor] = []

    def lay_out_all(
        trees: CandidateTrees, node_ids: torch.Tensor, roots: torch.Tensor, max_depth: int
    ) -> VerifyLayout:
        selected[:] = [node_ids]
        every_node = (~trees.is_padding).flatten().nonzero().flatten()
        return lay_out(trees, every_node, roots, max_depth)

    def accept_selected(full: VerifyLayout, sampled: torch.Tensor) -> Acceptance:
        is_open = torch.isin(full.nodes, selected[0]) | (full.nodes < 0)
        masked = torch.where(is_open, full.token_ids, NO_TOKEN)
        return accept(dataclasses.replace(full, token_ids=masked), sampled)

    layout.lay_out = lay_out_all  # type: ignore[assignment]
    acceptance.accept = accept_selected  # type: ignore[assignment]
