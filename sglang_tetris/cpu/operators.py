"""``sgl_kernel`` for SGLang's CPU engine: the operators its bookkeeping needs, in plain torch.

SGLang calls them by position, so the signatures are those of ``sgl_kernel`` (SGLang's
kernels/ops/speculative/cache_locs.py, kernels/ops/kvcache/cache_move.py and
srt/mem_cache/allocation.py). Operators of layers are not here: SGLang falls back to torch for
them. Asking for an operator that is missing works, calling it says so.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from sglang_tetris.cpu.speculation import (
    assign_draft_cache_locs_contiguous_cpu as assign_draft_cache_locs_contiguous_cpu,
)
from sglang_tetris.cpu.speculation import (
    build_tree_kernel_efficient_cpu as build_tree_kernel_efficient_cpu,
)
from sglang_tetris.cpu.speculation import (
    fill_accept_out_cache_loc_cpu as fill_accept_out_cache_loc_cpu,
)
from sglang_tetris.cpu.speculation import fill_bonus_tokens_cpu as fill_bonus_tokens_cpu
from sglang_tetris.cpu.speculation import verify_tree_greedy_cpu as verify_tree_greedy_cpu


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write the next ``end - start`` slots of ``out_cache_loc`` into each request's row."""
    taken = 0
    for request, start, end in _spans(req_pool_indices, start_offset, end_offset):
        slots = out_cache_loc[taken : taken + end - start]
        req_to_token[request, start:end] = slots.to(req_to_token.dtype)
        taken += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Read each request's slots from ``start`` to ``end`` into ``out_cache_loc``, packed."""
    taken = 0
    for request, start, end in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[taken : taken + end - start] = req_to_token[request, start:end]
        taken += end - start


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Copy slots from ``src_loc`` to ``tgt_loc`` in every buffer, given by address and slot size.

    All sources are read before any target is written, so the two may overlap.
    """
    moved = tgt_loc != src_loc
    targets, sources = tgt_loc[moved].tolist(), src_loc[moved].tolist()
    if not targets:
        return
    for base, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        saved = [ctypes.string_at(base + source * stride, stride) for source in sources]
        for target, content in zip(targets, saved, strict=True):
            ctypes.memmove(base + target * stride, content, stride)


def _spans(
    req_pool_indices: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor
) -> zip[tuple[int, int, int]]:
    return zip(req_pool_indices.tolist(), starts.tolist(), ends.tolist(), strict=True)


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """SGLang imports operators by name for every feature; refuse when one is used, not before."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"sgl_kernel.{name} has no CPU version in sglang-tetris; "
            "switch off the SGLang feature that calls it"
        )

    return missing
