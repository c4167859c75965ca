"""A small language model as a draft: its own weights and KV, in the target's slots.

The draft's KV of a committed prefix lives at the same slot numbers as the target's, so the
prefix cache serves both. A slot may hold the target's KV and not the draft's: of the last accepted
draft token of a step, or of a request that was not drafted for. ``_has_kv`` keeps this per slot,
and tells at a prefill how much of a cached prefix the draft has; ``_lens`` keeps it per running
request. The first draft forward of a step catches up before anything is drafted from a hole.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)

from sglang_tetris.core.acceptance import Acceptance
from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.layout import VerifyLayout
from sglang_tetris.engine.drafting import DraftRequests, Source
from sglang_tetris.engine.history import TokenHistory


class DraftModelSource:
    """Drafts chains greedily and keeps the probability of every drafted token."""

    def __init__(self, worker: TpModelWorker) -> None:
        self.worker = worker
        self._runner = worker.model_runner
        self._has_kv = torch.zeros(0, dtype=torch.bool)  # per KV slot
        self._lens = torch.zeros(0, dtype=torch.int64)  # per request slot: leading tokens with KV

    def allocate(self, pools: dict[str, Any]) -> None:
        """Allocate the draft's KV beside the target's, indexed alike."""
        self.worker.alloc_memory_pool(**pools)
        num_slots = self._runner.token_to_kv_pool.size + self._runner.token_to_kv_pool.page_size
        self._has_kv = torch.zeros(num_slots, dtype=torch.bool)
        self._lens = torch.zeros(self._req_to_token.shape[0], dtype=torch.int64)

    def prefill(self, batch: Any, history: TokenHistory) -> None:
        """Follow the target through a prefill chunk, from the first token without draft KV."""
        requests = batch.req_pool_indices.tolist()
        ends = batch.seq_lens.tolist()
        self._has_kv[batch.out_cache_loc] = False
        starts = [self._first_hole(slot, end) for slot, end in zip(requests, ends, strict=True)]
        self._extend(batch, history, requests, starts, ends)

    def propose(self, requests: DraftRequests) -> CandidateTrees:
        """Return one chain per request: the argmax of each draft step and its probability."""
        slots = requests.req_pool_indices.tolist()
        roots = requests.seq_lens.tolist()
        starts = self._lens[slots].tolist()
        logits = self._extend(
            requests.batch, requests.history, slots, starts, [root + 1 for root in roots]
        )
        tokens, logprobs = [], []
        for step in range(requests.depth):
            logprob, token = torch.log_softmax(logits.float(), dim=-1).max(dim=-1)
            tokens.append(token)
            logprobs.append(logprob)
            if step + 1 < requests.depth:
                logits = self._decode(requests, token, step + 1)
        self._lens[slots] += requests.depth - 1
        token_ids = torch.stack(tokens, dim=1)
        return CandidateTrees.chains(
            token_ids,
            torch.stack(logprobs, dim=1),
            lens=requests.usable_lens(token_ids),
            source=Source.LM,
        )

    def observe(
        self,
        requests: DraftRequests,
        trees: CandidateTrees,
        layout: VerifyLayout,
        acceptance: Acceptance,
    ) -> None:
        """Keep the draft's KV of the accepted path; the rest of the window holds nothing."""
        slots = requests.req_pool_indices
        committed = requests.seq_lens + acceptance.accept_lens
        lens = torch.minimum(self._lens[slots], committed)
        self._lens[slots] = lens
        columns = requests.seq_lens[:, None] + torch.arange(requests.windows.shape[1])
        self._has_kv[requests.windows] = columns < lens[:, None]

    @property
    def _req_to_token(self) -> torch.Tensor:
        table: torch.Tensor = self._runner.req_to_token_pool.req_to_token
        return table

    def _first_hole(self, slot: int, end: int) -> int:
        """Return the first of a request's ``end`` tokens that the draft has no KV of."""
        holes = ~self._has_kv[self._req_to_token[slot, :end].long()]
        return int(holes.int().argmax()) if bool(holes.any()) else end

    def _extend(
        self,
        batch: Any,
        history: TokenHistory,
        slots: Sequence[int],
        starts: Sequence[int],
        ends: Sequence[int],
    ) -> torch.Tensor:
        """Run the draft over ``starts`` to ``ends`` of each request; return the last logits."""
        spans = list(zip(slots, starts, ends, strict=True))
        assert all(start < end for _, start, end in spans), f"nothing to extend in {spans}"
        view = copy.copy(batch)
        view.forward_mode = ForwardMode.EXTEND
        view.input_ids = torch.cat([history.token_ids[s, a:b] for s, a, b in spans])
        view.out_cache_loc = torch.cat([self._req_to_token[s, a:b] for s, a, b in spans]).long()
        view.prefix_lens = list(starts)
        view.extend_lens = [end - start for _, start, end in spans]
        view.extend_num_tokens = sum(view.extend_lens)
        view.extend_logprob_start_lens = view.extend_lens
        view.seq_lens = torch.tensor(ends, dtype=torch.int64)
        logits = self._forward(view)
        self._has_kv[view.out_cache_loc] = True
        self._lens[slots] = view.seq_lens
        return logits

    def _decode(self, requests: DraftRequests, tokens: torch.Tensor, step: int) -> torch.Tensor:
        """Run the draft on the tokens drafted last, ``step`` places after the roots."""
        view = copy.copy(requests.batch)
        view.forward_mode = ForwardMode.DECODE
        view.input_ids = tokens
        view.out_cache_loc = requests.windows[:, step]
        view.seq_lens = requests.seq_lens + step + 1  # a decode counts its own token
        return self._forward(view)

    def _forward(self, view: Any) -> torch.Tensor:
        view.seq_lens_cpu = view.seq_lens.cpu()
        view.seq_lens_sum = view.spec_info = None
        # The draft reads token ids; these are the target's embeddings.
        view.input_embeds = view.replace_embeds = view.replace_positions = None
        view.multimodal_inputs = None
        view.return_logprob = False
        forward_batch = ForwardBatch.init_new(
            view,
            self._runner,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            return_hidden_states_before_norm=False,
        )
        logits: torch.Tensor = self._runner.forward(forward_batch).logits_output.next_token_logits
        return logits
