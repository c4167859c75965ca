"""What each row of a forward attends to: a committed prefix and a short list of extra slots.

Prefill, decode, draft steps, chains and trees are all this one thing. A row's keys, in order,
are the first ``prefix_len`` tokens of its request followed by its own extra slots; in a
verify forward those are the row's ancestors and the row itself. This module knows nothing of
models, batches or kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_tetris.core.layout import VerifyLayout


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """The keys of every row of a forward, in the order in which they are summed."""

    request: torch.Tensor  # [num_rows] int64; row of req_to_token the prefix is read from
    prefix_len: torch.Tensor  # [num_rows] int64; committed tokens attended to
    extra_indptr: torch.Tensor  # [num_rows + 1] int64; CSR offsets into extra_slots
    extra_slots: torch.Tensor  # [at least extra_indptr[-1]] int64; KV slots after the prefix

    @property
    def num_rows(self) -> int:
        return self.request.shape[0]


def prefix_rows(request: torch.Tensor, prefix_len: torch.Tensor) -> Rows:
    """Return rows without extra slots: each attends to the first ``prefix_len`` tokens."""
    return Rows(
        request=request.long(),
        prefix_len=prefix_len.long(),
        extra_indptr=torch.zeros(request.shape[0] + 1, dtype=torch.int64, device=request.device),
        extra_slots=torch.empty(0, dtype=torch.int64, device=request.device),
    )


def extend_rows(
    req_pool_indices: torch.Tensor,
    extend_prefix_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    num_tokens: int,
) -> Rows:
    """Return the causal rows of a prefill: the token at position p attends to p + 1 tokens.

    ``num_tokens`` is the sum of ``extend_lens``, known to the host.
    """
    lens = extend_lens.long()
    request = torch.repeat_interleave(req_pool_indices.long(), lens, output_size=num_tokens)
    starts = torch.cumsum(lens, dim=0) - lens
    shift = torch.repeat_interleave(
        extend_prefix_lens.long() - starts, lens, output_size=num_tokens
    )
    return prefix_rows(request, torch.arange(num_tokens, device=lens.device) + shift + 1)


def window_rows(
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    slots: torch.Tensor,
    attends: torch.Tensor,
) -> Rows:
    """Return the rows of windows that stand behind the committed prefixes, all equally wide.

    ``slots`` [num_requests, num_slots] are a window's, ``attends`` [num_requests, width, num_slots]
    says which of them each row sees besides its request's prefix. Waits for the device.
    """
    num_requests, width, _ = attends.shape
    extra_indptr = torch.zeros(num_requests * width + 1, dtype=torch.int64, device=slots.device)
    torch.cumsum(attends.sum(dim=-1).flatten(), dim=0, out=extra_indptr[1:])
    return Rows(
        request=req_pool_indices.long().repeat_interleave(width),
        prefix_len=seq_lens.long().repeat_interleave(width),
        extra_indptr=extra_indptr,
        extra_slots=slots.long()[:, None].expand_as(attends)[attends],
    )


def verify_rows(
    layout: VerifyLayout,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    slots: torch.Tensor,
) -> Rows:
    """Return the rows of a verify forward: the committed prefix, the ancestors, the row itself.

    ``slots`` [num_verify] is where each row's keys and values are written.
    """
    counts = layout.depths + 1
    extra_indptr = torch.zeros(layout.num_verify + 1, dtype=torch.int64, device=slots.device)
    torch.cumsum(counts, dim=0, out=extra_indptr[1:])
    # The CSR array has a host-known upper bound; entries that no row owns stay unused, so
    # nothing here waits for the device.
    width = layout.max_depth + 1
    column = torch.arange(width, device=slots.device)
    unused = layout.num_verify * width
    target = torch.where(column < counts[:, None], extra_indptr[:-1, None] + column, unused)
    extra_slots = torch.zeros(unused + 1, dtype=torch.int64, device=slots.device)
    extra_slots[target] = slots.long()[layout.ancestors.clamp(min=0)]
    return Rows(
        request=req_pool_indices.long()[layout.requests],
        prefix_len=seq_lens.long()[layout.requests],
        extra_indptr=extra_indptr,
        extra_slots=extra_slots,
    )
