"""The sampler that SGLang calls at prefill and in plain decoding; verification draws with it too.

Where it serves, what is said depends on a request, its seed and the model: not on the batch, and
not on whether anything was speculated.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.sampler import (
    SGLANG_RETURN_ORIGINAL_LOGPROB,
    Sampler,
    _SamplingMaskCapture,
)
from sglang.srt.runtime_context import get_exec

from sglang_tetris.core import sampling
from sglang_tetris.core.noise import uniforms
from sglang_tetris.core.sampling import Filters
from sglang_tetris.cpu import sampling as cpu_sampling
from sglang_tetris.cpu.finder import is_cpu_engine

BACKEND = "tetris"  # what --sampling-backend calls it
CPU_BACKEND = "pytorch"  # the only one SGLang allows on a CPU (platform_hook.py)


def serves() -> bool:
    """Whether this server draws with our sampler."""
    ours = CPU_BACKEND if is_cpu_engine() else BACKEND
    return bool(get_exec().kernel.sampling_backend == ours)


def filters_of(sampling_info: Any) -> Filters:
    """Return the filters of SGLang's ``SamplingBatchInfo``, one row per request."""
    return Filters(
        temperatures=sampling_info.temperatures.squeeze(-1),
        top_ks=sampling_info.top_ks,
        top_ps=sampling_info.top_ps,
        min_ps=sampling_info.min_ps,
    )


def draw(
    logits: torch.Tensor, filters: Filters, seeds: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Return one token id per row, int64; ``positions`` are those of the rows' input tokens."""
    numbers = uniforms(seeds, positions)
    if logits.device.type == "cpu":
        return cpu_sampling.draw(logits, filters, numbers)
    return sampling.draw(logits, filters, numbers)


class TetrisSampler(Sampler):
    """SGLang's sampler with our draw."""

    def forward(
        self,
        logits_output: Any,
        sampling_info: Any,
        return_logprob: bool,
        top_logprobs_nums: list[int],
        token_ids_logprobs: list[list[int]],
        positions: torch.Tensor,
        *,
        logprob_logits: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the next token of each row and leave what was asked for in ``logits_output``."""
        logits = self._preprocess_logits(logits_output.next_token_logits, sampling_info)
        filters = filters_of(sampling_info)
        token_ids = draw(logits, filters, sampling_info.sampling_seed, positions)
        if return_logprob:
            if logprob_logits is not None:  # those before a watermark
                logits = self._preprocess_logits(logprob_logits, sampling_info)
            scaled = logits if SGLANG_RETURN_ORIGINAL_LOGPROB else filters.scale(logits)
            self.output_logprob_processor.compute_logprobs(
                scaled.log_softmax(dim=-1), top_logprobs_nums, token_ids_logprobs, token_ids
            ).write_output_to(logits_output)
        self._sync_token_ids_across_tp(token_ids, sampling_info)
        rows = sampling_info.sampling_mask_batch_indices
        if rows is not None:
            logits_output.sampling_mask_output = self._build_sampling_mask_output(
                token_ids,
                _SamplingMaskCapture(
                    weights=_support(
                        logits_output.next_token_logits[rows],
                        filters.of_rows(rows),
                        token_ids[rows],
                    ),
                    token_ids=None,
                    selected_weight=None,
                    batch_rows=rows,
                ),
                sampling_info.sampling_support_logprobs_capture_indices,
            )
        return token_ids


def _support(logits: torch.Tensor, filters: Filters, token_ids: torch.Tensor) -> torch.Tensor:
    """Return the probabilities that each row's token was drawn among (``return_sampling_mask``)."""
    kept = sampling.kept_probs(filters.scale(logits).softmax(dim=-1), filters)
    taken = torch.zeros_like(kept).scatter_(1, token_ids[:, None], 1.0)
    return torch.where(filters.is_greedy[:, None], taken, kept)
