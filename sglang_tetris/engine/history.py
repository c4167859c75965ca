"""The tokens of every running request, kept where drafting needs them.

One row per slot of SGLang's request pool, on the model's device, written as the forward
produces tokens: at prefill and at commit. Under overlap scheduling ``req.output_ids`` lags one
step behind on the host; this table never does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sglang_tetris.core.acceptance import Acceptance


class TokenHistory:
    """The committed tokens of each request followed by its root token."""

    def __init__(
        self, num_slots: int, width: int, vocab_size: int, device: torch.device | str
    ) -> None:
        self._vocab_size = vocab_size
        self.token_ids = torch.zeros((num_slots, width), dtype=torch.int64, device=device)

    def record_prefill(self, batch: Any, next_token_ids: torch.Tensor) -> None:
        """Write each request up to the end of its chunk, then the token sampled after it.

        The whole prefix is written, not only the chunk: a request that hit the prefix cache or
        comes back after retraction has a fresh slot.
        """
        for slot, req in zip(batch.req_pool_indices.tolist(), batch.reqs, strict=True):
            tokens = torch.from_numpy(np.array(req.get_fill_ids(), dtype=np.int64))
            # An image stands in a prompt as numbers that no model may embed; any token will do.
            tokens[tokens >= self._vocab_size] = 0
            self.token_ids[slot, : tokens.shape[0]] = tokens.to(self.token_ids.device)
        self.token_ids[batch.req_pool_indices, batch.seq_lens] = next_token_ids.long()

    def roots(self, req_pool_indices: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
        """Return each request's root token: the last one emitted, not yet in the KV."""
        return self.token_ids[req_pool_indices, seq_lens]

    def between(
        self, req_pool_indices: torch.Tensor, starts: torch.Tensor, lens: torch.Tensor
    ) -> torch.Tensor:
        """Return each request's tokens from ``starts`` on, [num_requests, longest], -1 beyond."""
        columns = torch.arange(int(lens.max()), device=lens.device)
        positions = (starts[:, None] + columns).clamp(max=self.token_ids.shape[1] - 1)
        tokens = self.token_ids[req_pool_indices[:, None], positions]
        return torch.where(columns < lens[:, None], tokens, -1)

    def record_step(
        self, req_pool_indices: torch.Tensor, seq_lens: torch.Tensor, acceptance: Acceptance
    ) -> None:
        """Append the emitted tokens. What is beyond them is overwritten before it is read."""
        width = acceptance.token_ids.shape[1]
        columns = seq_lens[:, None] + 1 + torch.arange(width, device=seq_lens.device)
        self.token_ids[req_pool_indices[:, None], columns] = acceptance.token_ids
