"""Penalties from the tokens a row has seen, for plain decoding and for verification alike.

SGLang accumulates penalties step by step (sampling/penaltylib): under speculation it would miss
all but the last token of a step, and a request that was retracted starts again from nothing. Here
they are computed from the tokens themselves, in the same order of operations, so that a verified
row has the bits of the decode step it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sglang_tetris.engine.requests import ending_token_ids


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outputs:
    """What each row's request has answered so far, with the row's own ancestors."""

    token_ids: torch.Tensor  # [num_rows, width] int64; -1 beyond a row's tokens
    lens: list[int]  # tokens per row


def is_penalised(params: Any) -> bool:
    """Whether SGLang's sampling parameters ask for anything that depends on the answer so far."""
    return bool(
        params.frequency_penalty != 0
        or params.presence_penalty != 0
        or params.repetition_penalty != 1
        or params.min_new_tokens > 0
    )


def additive(reqs: Sequence[Any], outputs: Outputs, vocab_size: int) -> torch.Tensor:
    """Return what is added to the logits, [num_rows, vocab_size] float32; one request per row.

    Tokens that would end an answer before ``min_new_tokens`` get minus infinity.
    """
    params = [req.sampling_params for req in reqs]
    token_ids = _with_spare(outputs.token_ids, vocab_size)
    added = _rows(len(reqs), vocab_size, 0.0, token_ids)
    # One addition per occurrence, as SGLang accumulates them.
    frequency = _column([-p.frequency_penalty for p in params], token_ids)
    added.scatter_add_(1, token_ids, frequency.expand_as(token_ids))
    is_present = torch.zeros_like(added).scatter_(1, token_ids, 1.0)
    added -= is_present * _column([p.presence_penalty for p in params], token_ids)
    for row, (req, length) in enumerate(zip(reqs, outputs.lens, strict=True)):
        if length < req.sampling_params.min_new_tokens:
            added[row, sorted(ending_token_ids(req))] = -torch.inf
    return added[:, :vocab_size]


def scaling(reqs: Sequence[Any], outputs: Outputs, vocab_size: int) -> torch.Tensor | None:
    """Return each logit's repetition penalty, [num_rows, vocab_size] float32; None if all are 1."""
    penalties = [req.sampling_params.repetition_penalty for req in reqs]
    if all(penalty == 1 for penalty in penalties):
        return None
    token_ids = _with_spare(outputs.token_ids, vocab_size)
    factors = _rows(len(reqs), vocab_size, 1.0, token_ids)
    factors.scatter_(1, token_ids, _column(penalties, token_ids).expand_as(token_ids))
    return factors[:, :vocab_size]


def scale(logits: torch.Tensor, factors: torch.Tensor) -> None:
    """Move seen tokens' logits down, in place (penaltylib's ``apply_scaling_penalties``).

    SGLang's own is compiled at the first request that needs it: with a compiler, and in seconds.
    """
    logits.copy_(torch.where(logits < 0, logits * factors, logits / factors))


def of_batch(reqs: Sequence[Any]) -> Outputs:
    """Return what the requests of a plain decode or a prefill have answered."""
    rows = [torch.tensor(req.output_ids, dtype=torch.int64) for req in reqs]
    return Outputs(
        token_ids=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1),
        lens=[len(row) for row in rows],
    )


def apply(orchestrator: Any, logits: torch.Tensor) -> None:
    """Penalise a plain forward's logits in place (``BatchedPenalizerOrchestrator.apply``).

    SGLang's own subtracts one kind after the other, in the order of a set.
    """
    reqs = orchestrator.batch.reqs
    assert len(reqs) == logits.shape[0], "one row of logits per request"
    if any(is_penalised(req.sampling_params) for req in reqs):
        outputs = of_batch(reqs)
        logits.add_(additive(reqs, outputs, logits.shape[-1]))
        factors = scaling(reqs, outputs, logits.shape[-1])
        if factors is not None:
            scale(logits, factors)


def prepare(sampling_info: Any) -> None:
    """Do the same in two steps, where SGLang detaches a forward's parameters from its batch
    (``SamplingBatchInfo.update_penalties``): it will add the first and scale by the second."""
    sampling_info.acc_additive_penalties = sampling_info.acc_scaling_penalties = None
    batch = sampling_info.penalizer_orchestrator.batch
    is_verify = batch.forward_mode.is_decode() and not batch.spec_algorithm.is_none()
    if is_verify or not any(is_penalised(req.sampling_params) for req in batch.reqs):
        return  # verification sees to its own rows
    assert len(batch.reqs) == len(sampling_info), "one row of parameters per request"
    outputs = of_batch(batch.reqs)
    vocab_size = sampling_info.vocab_size
    sampling_info.acc_additive_penalties = additive(batch.reqs, outputs, vocab_size)
    sampling_info.acc_scaling_penalties = scaling(batch.reqs, outputs, vocab_size)


def _with_spare(token_ids: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Send what is beyond a row's tokens to a column past the vocabulary."""
    return torch.where(token_ids < 0, vocab_size, token_ids)


def _rows(num_rows: int, vocab_size: int, value: float, like: torch.Tensor) -> torch.Tensor:
    return torch.full((num_rows, vocab_size + 1), value, device=like.device)


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=like.device)[:, None]
