"""What a source of drafts is asked, and what it may read."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import torch

from sglang_tetris.core.acceptance import Acceptance
from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.layout import VerifyLayout
from sglang_tetris.engine.history import TokenHistory


class Source(IntEnum):
    """Where a node of a candidate tree came from; calibration is per source."""

    LM = 0
    LOOKUP = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftRequests:
    """The running requests at the start of a step."""

    batch: Any  # SGLang's ScheduleBatch; sources copy it, never change it
    history: TokenHistory
    req_pool_indices: torch.Tensor  # [num_requests] int64
    seq_lens: torch.Tensor  # [num_requests] int64; committed tokens, the root not counted
    windows: torch.Tensor  # [num_requests, depth + 1] int64; KV slots from the root's on
    max_lens: list[int]  # draft tokens each request can still use, at most depth
    stop_token_ids: list[frozenset[int]]  # tokens that end each request

    @property
    def num_requests(self) -> int:
        return len(self.max_lens)

    @property
    def depth(self) -> int:
        """Tokens drafted per request."""
        return self.windows.shape[1] - 1

    def usable_lens(self, token_ids: torch.Tensor) -> list[int]:
        """Return how much of each drafted chain [num_requests, depth] is worth verifying.

        A stop token is not: the row before it yields it all the same, and what follows is never
        emitted. So it is always a bonus token and, as without speculation, not in the KV.
        """
        lens = []
        chains = zip(token_ids.tolist(), self.max_lens, self.stop_token_ids, strict=True)
        for chain, most, stops in chains:
            end = next((i for i, token in enumerate(chain) if token in stops), len(chain))
            lens.append(min(most, end))
        return lens


class DraftSource(Protocol):
    """One way to draft. It is told what became of its drafts and of every other forward."""

    def allocate(self, pools: dict[str, Any]) -> None:
        """Allocate what is indexed like SGLang's pools, which exist now."""
        ...

    def prefill(self, batch: Any, history: TokenHistory) -> None:
        """Take notice of a target prefill over ``batch``."""
        ...

    def propose(self, requests: DraftRequests) -> CandidateTrees:
        """Return candidates with raw scores."""
        ...

    def observe(
        self,
        requests: DraftRequests,
        trees: CandidateTrees,
        layout: VerifyLayout,
        acceptance: Acceptance,
    ) -> None:
        """Learn the outcome of a step; ``trees`` may be empty where nothing was drafted."""
        ...
