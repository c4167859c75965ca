"""From a verify layout to the target's logits, and from an acceptance to committed KV."""

from __future__ import annotations

import copy
from typing import Any

import torch
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode

from sglang_tetris.attention.rows import verify_rows
from sglang_tetris.core.acceptance import Acceptance
from sglang_tetris.core.layout import VerifyLayout
from sglang_tetris.engine import logprobs
from sglang_tetris.engine.drafting import DraftRequests
from sglang_tetris.engine.relay import TetrisVerifyInput


class Verifier:
    """Runs the target on exactly the rows of a layout."""

    def __init__(self, target_worker: Any) -> None:
        self._worker = target_worker
        self._runner = target_worker.model_runner

    def verify(self, requests: DraftRequests, layout: VerifyLayout) -> Any:
        """Return SGLang's logits output, one row of logits per row of the layout."""
        slots = _slots(requests, layout)
        view = copy.copy(requests.batch)
        view.forward_mode = ForwardMode.TARGET_VERIFY
        view.input_ids = layout.token_ids
        view.out_cache_loc = slots
        view.spec_info = TetrisVerifyInput(
            positions=layout.positions(requests.seq_lens),
            rows=verify_rows(layout, requests.req_pool_indices, requests.seq_lens, slots),
            draft_token_num=requests.windows.shape[1],
        )
        wants_hidden_states = requests.batch.return_hidden_states
        result = self._worker.forward_batch_generation(
            view,
            is_verify=True,
            capture_hidden_mode=(
                CaptureHiddenMode.FULL if wants_hidden_states else CaptureHiddenMode.NULL
            ),
        )
        output = result.logits_output
        num_rows = output.next_token_logits.shape[0]
        assert num_rows == layout.num_verify, f"{num_rows} rows for {layout.num_verify} tokens"
        return output

    def commit(
        self,
        requests: DraftRequests,
        layout: VerifyLayout,
        acceptance: Acceptance,
        logits_output: Any,
    ) -> GenerationBatchResult:
        """Make the accepted path the front of each window and describe the step to SGLang."""
        self._move_accepted_kv(requests, layout, acceptance)
        rows = acceptance.accepted_rows.clamp(min=0)  # SGLang reads accept_lens of each request
        if logits_output.hidden_states is not None:
            logits_output.hidden_states = logits_output.hidden_states[rows.flatten()]
        if requests.batch.return_logprob:
            logprobs.fill_in(requests.batch, layout, acceptance, logits_output)
        return GenerationBatchResult(
            logits_output=logits_output,
            next_token_ids=acceptance.token_ids.flatten(),
            speculative_output_stride=acceptance.token_ids.shape[1],
            speculative_num_draft_tokens=requests.depth + 1,
            accept_lens=acceptance.accept_lens.int(),
            cap_lens=layout.verify_lens.int(),
            new_seq_lens=requests.seq_lens + acceptance.accept_lens,
        )

    def _move_accepted_kv(
        self, requests: DraftRequests, layout: VerifyLayout, acceptance: Acceptance
    ) -> None:
        """Only a tree moves anything: a chain's accepted path is the front already."""
        slots = _slots(requests, layout)
        accepted = acceptance.accepted_rows
        sources = slots[accepted.clamp(min=0)]
        targets = requests.windows[:, : accepted.shape[1]]
        is_moved = (accepted >= 0) & (sources != targets)
        if bool(is_moved.any()):
            pool = self._runner.token_to_kv_pool
            pool.move_kv_cache(targets[is_moved], sources[is_moved])


def _slots(requests: DraftRequests, layout: VerifyLayout) -> torch.Tensor:
    """Return where each row writes its KV: the next free slot of its request's window."""
    within = torch.arange(layout.num_verify, device=layout.indptr.device)
    within = within - layout.root_rows[layout.requests]
    return requests.windows[layout.requests, within]
