"""The log-probabilities of emitted tokens, as SGLang's result processor reads them."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.sampler import SGLANG_RETURN_ORIGINAL_LOGPROB

from sglang_tetris.core.acceptance import Acceptance
from sglang_tetris.core.layout import VerifyLayout
from sglang_tetris.engine.sampler import filters_of


def fill_in(batch: Any, layout: VerifyLayout, acceptance: Acceptance, logits_output: Any) -> None:
    """Leave what the requests asked for in ``logits_output``, one column per token of a step.

    SGLang's ``compute_spec_logprobs`` normalises a row for every token that a step might have
    emitted; this one a row for every token that was verified, and each with its own request's
    temperature, whoever else is in the batch.
    """
    logits = logits_output.next_token_logits
    if not SGLANG_RETURN_ORIGINAL_LOGPROB:
        logits = filters_of(batch.sampling_info).of_rows(layout.requests).scale(logits)
    logprobs = logits.log_softmax(dim=-1)
    logprobs.clamp_(min=torch.finfo(logprobs.dtype).min)  # JSON knows no infinity

    rows = acceptance.accepted_rows.clamp(min=0)
    logits_output.next_token_logprobs = logprobs[rows, acceptance.token_ids.clamp(min=0)]
    if any(batch.top_logprobs_nums or ()):
        values, token_ids = logprobs.topk(max(batch.top_logprobs_nums), dim=-1)
        values, token_ids = values[rows], token_ids[rows]
        logits_output.next_token_top_logprobs_val = _cut(values, batch.top_logprobs_nums)
        logits_output.next_token_top_logprobs_idx = _cut(token_ids, batch.top_logprobs_nums)
    if any(ids is not None for ids in batch.token_ids_logprobs or ()):
        wanted = [ids or [] for ids in batch.token_ids_logprobs]
        logits_output.next_token_token_ids_logprobs_val = [
            of_token
            for of_request, ids in zip(rows, wanted, strict=True)
            for of_token in logprobs[:, ids][of_request]
        ]
        logits_output.next_token_token_ids_logprobs_idx = [ids for ids in wanted for _ in rows[0]]


def _cut(per_token: torch.Tensor, nums: list[int]) -> list[torch.Tensor]:
    """Return a list over requests and their tokens of the first ``nums[request]`` entries."""
    return [
        of_token[:num]
        for of_request, num in zip(per_token, nums, strict=True)
        for of_token in of_request
    ]
