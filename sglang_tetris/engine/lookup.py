"""Prompt lookup: the continuation of the longest earlier match of the request's own last tokens.

No model and no draft cost. The probability that a looked-up token is accepted is not given by
anything, so it is measured: per match length and depth, over all requests, while serving.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch

from sglang_tetris.core.acceptance import Acceptance
from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.layout import VerifyLayout
from sglang_tetris.engine.drafting import DraftRequests, Source
from sglang_tetris.engine.history import TokenHistory

MAX_MATCH = 8  # longer matches are scored alike


class AcceptanceTable:
    """How often a looked-up token was accepted once its parent was, by match length and depth.

    Each cell starts at match_len / (match_len + 2) with the weight of four trials: longer
    matches are trusted more before anything is known.
    """

    _PRIOR_TRIALS = 4.0

    def __init__(self, depth: int) -> None:
        lengths = torch.arange(MAX_MATCH + 1, dtype=torch.float64)
        prior = (lengths / (lengths + 2))[:, None].expand(-1, depth)
        self.trials = torch.full((MAX_MATCH + 1, depth), self._PRIOR_TRIALS, dtype=torch.float64)
        self.successes = prior * self._PRIOR_TRIALS

    def logprobs(self, match_lens: torch.Tensor) -> torch.Tensor:
        """Return [num_requests, depth] conditional log-probabilities, depth 1 first."""
        return (self.successes[match_lens] / self.trials[match_lens]).log().float()

    def observe(self, match_lens: torch.Tensor, depths: torch.Tensor, is_hit: torch.Tensor) -> None:
        """Count trials of nodes whose parent was accepted; all arguments are [num_trials]."""
        cells = (match_lens, depths - 1)
        self.trials.index_put_(cells, torch.ones_like(is_hit, dtype=torch.float64), accumulate=True)
        self.successes.index_put_(cells, is_hit.double(), accumulate=True)


class LookupSource:
    """Drafts chains from the token history."""

    def __init__(self, depth: int) -> None:
        self.table = AcceptanceTable(depth)
        self._match_lens = torch.zeros(0, dtype=torch.int64)

    def allocate(self, pools: dict[str, Any]) -> None:
        """There is nothing to allocate: the history is all that lookup reads."""

    def prefill(self, batch: Any, history: TokenHistory) -> None:
        """The history has been written."""

    def propose(self, requests: DraftRequests) -> CandidateTrees:
        """Return one chain per request that has a match; the others get no candidates."""
        rows = requests.history.token_ids[requests.req_pool_indices].cpu()
        num_tokens = requests.seq_lens.cpu() + 1
        drafts = np.full((requests.num_requests, requests.depth), -1, np.int64)
        match_lens = np.zeros(requests.num_requests, np.int64)
        lens = np.zeros(requests.num_requests, np.int64)
        _find(rows.numpy(), num_tokens.numpy(), MAX_MATCH, drafts, match_lens, lens)

        self._match_lens = torch.from_numpy(match_lens)
        token_ids = torch.from_numpy(drafts)
        usable = requests.usable_lens(token_ids)
        return CandidateTrees.chains(
            token_ids,
            self.table.logprobs(self._match_lens)[:, : requests.depth],
            lens=[min(found, most) for found, most in zip(lens.tolist(), usable, strict=True)],
            source=Source.LOOKUP,
        )

    def observe(
        self,
        requests: DraftRequests,
        trees: CandidateTrees,
        layout: VerifyLayout,
        acceptance: Acceptance,
    ) -> None:
        """Count each verified draft whose parent was accepted: was it accepted too?"""
        is_accepted = torch.zeros(layout.num_verify + 1, dtype=torch.bool)
        is_accepted[acceptance.accepted_rows.flatten()] = True  # -1 lands on the spare last entry
        is_trial = (layout.parents >= 0) & is_accepted[layout.parents]
        requests_tried = layout.requests[is_trial]
        self.table.observe(
            self._match_lens[requests_tried],
            layout.depths[is_trial],
            is_accepted[:-1][is_trial],
        )


@numba.njit(cache=True)
def _find(
    rows: Any,  # [num_requests, width] int64
    num_tokens: Any,  # [num_requests] int64; how much of a row is text
    max_match: int,
    drafts: Any,  # [num_requests, depth] int64, written
    match_lens: Any,  # [num_requests] int64, written
    lens: Any,  # [num_requests] int64, written
) -> None:
    """Find, per request, the longest suffix that occurred before; of several the most recent."""
    depth = drafts.shape[1]
    for i in range(rows.shape[0]):
        text, end = rows[i], num_tokens[i]
        best_len, best_next = 0, 0
        for last in range(end - 2, -1, -1):  # where an earlier occurrence would end
            length = 0
            while (
                length < max_match
                and length <= last
                and text[last - length] == text[end - 1 - length]
            ):
                length += 1
            if length > best_len:
                best_len, best_next = length, last + 1
                if length == max_match:
                    break
        match_lens[i] = best_len
        if best_len > 0:
            # The continuation may run into the suffix itself: then the text repeats with that
            # period, and so does the draft.
            period = end - best_next
            for j in range(depth):
                drafts[i, j] = text[best_next + j % period]
            lens[i] = depth
