"""What TETRIS hands to SGLang's batch between and within steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.speculative.spec_info import SpecInput, SpecInputType

from sglang_tetris.attention.rows import Rows


@dataclass(kw_only=True)
class TetrisDraftInput(SpecInput):
    """Rides on the batch from one step to the next; drafts start from the token history.

    SGLang filters and merges it with the batch, and relays ``bonus_tokens`` under overlap. The
    other fields are those that its relay reads from every draft input (managers/overlap_utils.py,
    ``RelayPayload.from_draft_input``).
    """

    bonus_tokens: torch.Tensor  # [num_requests] int64
    future_indices: torch.Tensor | None = None
    topk_p: None = None
    topk_index: None = None
    hidden_states: None = None

    def __post_init__(self) -> None:
        super().__init__(SpecInputType.EAGLE_DRAFT)

    def filter_batch(self, new_indices: torch.Tensor, new_indices_cpu: Any = None) -> None:
        """Keep the requests at ``new_indices``."""
        if self.future_indices is not None:
            self.future_indices = self.future_indices[new_indices]
        else:
            self.bonus_tokens = self.bonus_tokens[new_indices]

    def merge_batch(self, other: TetrisDraftInput) -> None:
        """Append the requests of another batch."""
        if self.future_indices is not None:
            assert other.future_indices is not None, "one batch is relayed and the other is not"
            self.future_indices = torch.cat((self.future_indices, other.future_indices))
        else:
            self.bonus_tokens = torch.cat((self.bonus_tokens, other.bonus_tokens))


@dataclass(kw_only=True)
class TetrisVerifyInput(SpecInput):
    """Tells the attention backend what the rows of a verify forward attend to."""

    positions: torch.Tensor  # [num_verify] int64
    rows: Rows
    draft_token_num: int  # bound on a request's rows, root counted (mem_cache/kv_loc_plan.py)

    def __post_init__(self) -> None:
        super().__init__(SpecInputType.EAGLE_VERIFY)
        # SGLang multiplies by this per request; a ragged forward has no common width.
        self.num_tokens_per_req = 1
        self.num_tokens_for_logprob_per_req = 1
