"""What a single request allows: how far it may be drafted for, and what ends it."""

from __future__ import annotations

from typing import Any


def usable_draft_tokens(req: Any, depth: int) -> int:
    """Return how many draft tokens can still be emitted before the bonus ends the answer.

    Under overlap scheduling the host's count lags a step behind; then it is an upper bound.
    """
    remaining: int = req.sampling_params.max_new_tokens - len(req.output_ids)
    return max(0, min(depth, remaining - 1))


def stop_token_ids(req: Any) -> frozenset[int]:
    """Return the tokens that end the request (schedule_batch.py, ``_check_token_based_finish``)."""
    return frozenset() if req.sampling_params.ignore_eos else ending_token_ids(req)


def ending_token_ids(req: Any) -> frozenset[int]:
    """Return the tokens that would end the request if it did not ignore them
    (penaltylib/min_new_tokens.py)."""
    stops = set(req.sampling_params.stop_token_ids or ()) | set(req.eos_token_ids or ())
    if req.tokenizer is not None:
        stops.add(req.tokenizer.eos_token_id)
        stops.update(req.tokenizer.additional_stop_token_ids or ())
    return frozenset(stops - {None})
