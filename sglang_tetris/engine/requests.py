"""What a single request allows: whether it may be drafted for, and how far."""

from __future__ import annotations

from typing import Any

GREEDY_TOP_K = 1  # SGLang turns temperature 0 into this (sampling_params.py)


def is_plain_greedy(req: Any) -> bool:
    """Whether the request's next token is the argmax of the raw logits and of nothing else.

    While a batch holds any other request, its steps verify roots only and draw with SGLang's
    own sampler: never accelerated, never wrong.
    """
    params = req.sampling_params
    return (
        params.top_k == GREEDY_TOP_K
        and params.frequency_penalty == 0
        and params.presence_penalty == 0
        and params.repetition_penalty == 1
        and params.min_new_tokens == 0
        and not params.logit_bias
        and req.grammar is None
        and req.custom_logit_processor is None
    )


def usable_draft_tokens(req: Any, depth: int) -> int:
    """Return how many draft tokens can still be emitted before the bonus ends the answer.

    Under overlap scheduling the host's count lags a step behind; then it is an upper bound.
    """
    remaining: int = req.sampling_params.max_new_tokens - len(req.output_ids)
    return max(0, min(depth, remaining - 1))


def stop_token_ids(req: Any) -> frozenset[int]:
    """Return the tokens that end the request (schedule_batch.py, ``_check_token_based_finish``)."""
    if req.sampling_params.ignore_eos:
        return frozenset()
    stops = set(req.sampling_params.stop_token_ids or ()) | set(req.eos_token_ids or ())
    if req.tokenizer is not None:
        stops.add(req.tokenizer.eos_token_id)
        stops.update(req.tokenizer.additional_stop_token_ids or ())
    return frozenset(stops)
