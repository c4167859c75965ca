"""What SGLang's own path draws from, and what our sampler draws there: one request, one token.

The oracle of a verification's rows: every one of them is such a decode, for the request as it
would be after the row's path.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.runtime_context import get_context, get_parallel

from sglang_tetris.engine.seeds import seeds_of
from tests.support.stand_ins import Batch, Request


@contextmanager
def engine() -> Iterator[None]:
    """Publish the configuration that SGLang's sampling reads, for a CPU and one rank."""
    options = {"device": "cpu", "enable_custom_logit_processor": True}
    with (
        get_context().override_server_args(**options),
        get_parallel().override(tp_group=SimpleNamespace(device_group=None)),
        torch.compiler.set_stance("force_eager"),  # SGLang compiles at a first call
    ):
        yield


def sampling_info(batch: Batch, vocab_size: int) -> Any:
    """Return the batch's sampling parameters as its scheduler makes them, with our seeds."""
    # Late: it imports SGLang's layers, which have something to say about the machine.
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    info = SamplingBatchInfo.from_schedule_batch(batch, vocab_size)
    info.sampling_seed = seeds_of(batch.reqs, batch.device)
    batch.sampling_info = info
    return info


def after(req: Request, path: Sequence[int]) -> Request:
    """Return the request as it would be with these tokens answered too.

    Raises ``ValueError`` where its grammar forbids them.
    """
    grammar = req.grammar
    if grammar is not None:
        grammar = grammar.after(path)
    return dataclasses.replace(req, output_ids=req.output_ids + array("q", path), grammar=grammar)


def decode(req: Request, logits: torch.Tensor, **asked: Any) -> Any:
    """Return the sampler's output for a request's next token; ``token_id`` is what was drawn.

    ``next_token_logits`` [1, vocab_size] is what it was drawn from. ``asked`` is about
    log-probabilities.
    """
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput  # late: see above

    from sglang_tetris.engine.sampler import TetrisSampler

    info = sampling_info(batch := Batch(reqs=[req]), logits.shape[-1])
    for token_id in req.output_ids:
        info.penalizer_orchestrator.cumulate_output_tokens(torch.tensor([token_id]))
    info = info.copy_for_forward()
    if req.grammar is not None:
        info.grammars = [req.grammar]
        info.update_regex_vocab_mask()
        info.grammars = None  # the ranks, of which there is one, would agree on the token
    row = logits.clone()[None]
    info.apply_logits_bias(row)
    output = LogitsProcessorOutput(next_token_logits=row)
    position = len(req.origin_input_ids) + len(req.output_ids) - 1
    output.token_id = int(
        TetrisSampler()(
            output,
            info,
            return_logprob=bool(asked),
            top_logprobs_nums=asked.get("top_logprobs_nums", [0]),
            token_ids_logprobs=asked.get("token_ids_logprobs", [None]),
            positions=torch.tensor([position]),
        )
    )
    del batch  # the penalties know it by a weak reference
    return output
