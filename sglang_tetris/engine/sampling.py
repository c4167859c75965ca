"""One draw per verified row, from what a plain decode at that point would draw from.

The order of operations is that of SGLang's plain path (model_runner.py ``sample``): penalties,
grammar mask, logit bias, custom processors, then the draw. What depends on the answer so far sees
the committed tokens and the row's own ancestors.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch
from sglang.srt.utils.async_probe import sanitize_nan_logits

from sglang_tetris.core.layout import VerifyLayout
from sglang_tetris.core.sampling import largest
from sglang_tetris.engine import grammar, penalties
from sglang_tetris.engine.drafting import DraftRequests
from sglang_tetris.engine.sampler import draw, filters_of


def sample(requests: DraftRequests, layout: VerifyLayout, logits: torch.Tensor) -> torch.Tensor:
    """Return the target's draw at every row, [num_verify] int64.

    ``logits`` is [num_verify, vocab_size] and is changed in place into what was drawn from; its
    log-probabilities are those to report.
    """
    sampling_info = requests.batch.sampling_info
    _penalise(requests, layout, logits)
    mask = grammar.row_mask(requests.batch.reqs, layout, logits.shape[-1])
    if mask is not None:
        mask.apply(logits)
    if sampling_info.logit_bias is not None:
        logits.add_(sampling_info.logit_bias[layout.requests])
    if sampling_info.has_custom_logit_processor:
        _process(requests, layout, logits)
    sanitize_nan_logits(logits, "tetris: rows")
    if sampling_info.is_all_greedy:
        return largest(logits)
    return draw(
        logits,
        filters_of(sampling_info).of_rows(layout.requests),
        sampling_info.sampling_seed[layout.requests],
        layout.positions(requests.seq_lens),
    )


def _penalise(requests: DraftRequests, layout: VerifyLayout, logits: torch.Tensor) -> None:
    reqs = requests.batch.reqs
    of_request = [penalties.is_penalised(req.sampling_params) for req in reqs]
    if not any(of_request):
        return
    row_requests = layout.requests.tolist()
    rows = [row for row, request in enumerate(row_requests) if of_request[request]]
    outputs = _outputs(requests, layout, torch.tensor(rows, device=logits.device))
    row_reqs = [reqs[row_requests[row]] for row in rows]
    penalised = logits[rows] + penalties.additive(row_reqs, outputs, logits.shape[-1])
    factors = penalties.scaling(row_reqs, outputs, logits.shape[-1])
    if factors is not None:
        penalties.scale(penalised, factors)
    logits[rows] = penalised


def _outputs(
    requests: DraftRequests, layout: VerifyLayout, rows: torch.Tensor
) -> penalties.Outputs:
    """Return what the rows' requests have answered up to their roots, and the paths after them."""
    prompt_lens = torch.tensor(
        [len(req.origin_input_ids) for req in requests.batch.reqs], device=rows.device
    )
    committed_lens = requests.seq_lens + 1 - prompt_lens  # the root counted
    committed = requests.history.between(requests.req_pool_indices, prompt_lens, committed_lens)
    ancestors = layout.ancestors[rows, 1:]  # the root is in the history
    path = torch.where(ancestors < 0, -1, layout.token_ids[ancestors.clamp(min=0)])
    of_rows = layout.requests[rows]
    lens = committed_lens[of_rows] + layout.depths[rows]
    return penalties.Outputs(
        token_ids=torch.cat((committed[of_rows], path), dim=1), lens=lens.tolist()
    )


def _process(requests: DraftRequests, layout: VerifyLayout, logits: torch.Tensor) -> None:
    """Apply custom logit processors, each to all rows of its requests at once."""
    sampling_info = requests.batch.sampling_info
    row_requests, row_token_ids = layout.requests.tolist(), layout.token_ids.tolist()
    ancestors = layout.ancestors.tolist()
    for entry in sampling_info.custom_logit_processor.values():
        mine = set(entry.rows)
        rows = [row for row, request in enumerate(row_requests) if request in mine]
        params = []
        for row in rows:
            path = [row_token_ids[node] for node in ancestors[row][1:] if node >= 0]
            params.append(_at_row(sampling_info.custom_params[row_requests[row]], path))
        processed = entry.processor(logits[rows], params)
        logits[rows] = processed.to(logits.dtype)


def _at_row(params: Any, path: list[int]) -> Any:
    """Return a processor's parameters with the request as it would be after ``path``."""
    if not path or not isinstance(params, dict) or "__req__" not in params:
        return params
    return params | {"__req__": _RequestAfter(params["__req__"], path)}


class _RequestAfter:
    """A request seen some tokens later; everything but its answer so far is its own."""

    def __init__(self, req: Any, path: list[int]) -> None:
        self._req = req
        self.output_ids = req.output_ids + array("q", path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._req, name)
