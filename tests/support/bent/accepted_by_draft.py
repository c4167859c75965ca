"""A wrong rule: a draft is accepted when a coin falls below its draft probability, whatever the
target drew. Where it is not, the target's own draw stands. For chains."""

from __future__ import annotations

import torch

from sglang_tetris.core import layout as core_layout
from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.layout import VerifyLayout
from sglang_tetris.core.noise import uniforms
from sglang_tetris.engine import sampling
from sglang_tetris.engine.drafting import DraftRequests


def register() -> None:
    lay_out, sample = core_layout.lay_out, sampling.sample
    drafted: list[CandidateTrees] = []

    def lay_out_and_remember(
        trees: CandidateTrees, node_ids: torch.Tensor, roots: torch.Tensor, max_depth: int
    ) -> VerifyLayout:
        drafted[:] = [trees]
        return lay_out(trees, node_ids, roots, max_depth)

    def sample_by_coin(
        requests: DraftRequests, layout: VerifyLayout, logits: torch.Tensor
    ) -> torch.Tensor:
        sampled = sample(requests, layout, logits)
        path_logprobs = torch.cat((drafted[0].path_logprobs.flatten(), torch.zeros(1)))
        of_rows = path_logprobs[layout.nodes]  # a root's node is -1: the zero
        child = layout.first_child
        draft_probs = (of_rows[child] - of_rows).exp()
        seeds = requests.batch.sampling_info.sampling_seed[layout.requests]
        coins = uniforms(~seeds, layout.positions(requests.seq_lens))  # not those of the draws
        is_accepted = (child >= 0) & (coins < draft_probs)
        return torch.where(is_accepted, layout.token_ids[child], sampled)

    core_layout.lay_out = lay_out_and_remember  # type: ignore[assignment]
    sampling.sample = sample_by_coin
