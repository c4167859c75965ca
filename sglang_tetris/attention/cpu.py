"""The attention backend of the CPU engine, ``tetris_cpu``: every forward is attention over rows."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.model_executor.forward_batch_info import ForwardBatch

from sglang_tetris.attention.cpu_kernel import attend, set_num_threads
from sglang_tetris.attention.rows import Rows, extend_rows, prefix_rows, window_rows
from sglang_tetris.errors import UnsupportedError

NAME = "tetris_cpu"


class TetrisCpuBackend(AttentionBackend):
    """Writes a layer's keys and values, then attends over the rows of the forward."""

    def __init__(self, model_runner: Any) -> None:
        super().__init__()
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.rows: Rows | None = None
        self.num_threads = torch.get_num_threads()
        set_num_threads(self.num_threads)
        self._compile()

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Work out, once per forward, what each of its rows attends to."""
        mode = forward_batch.forward_mode
        if mode.is_target_verify():
            rows = getattr(forward_batch.spec_info, "rows", None)
            self.rows = rows if rows is not None else _masked_rows(forward_batch)
        elif mode.is_decode():
            self.rows = prefix_rows(forward_batch.req_pool_indices, forward_batch.seq_lens)
        else:
            self.rows = extend_rows(
                forward_batch.req_pool_indices,
                forward_batch.extend_prefix_lens,
                forward_batch.extend_seq_lens,
                forward_batch.input_ids.shape[0],
            )

    def forward_decode(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Attend; a decode row is a row like any other."""
        return self.forward_extend(*args, **kwargs)

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Return [num_rows, num_heads * value_dim] in the dtype of ``q``."""
        _check_layer(layer)
        assert self.rows is not None, "init_forward_metadata comes first"
        if save_kv_cache and k is not None and v is not None:
            location = KVWriteLoc(forward_batch.out_cache_loc, None)
            self.token_to_kv_pool.set_kv_buffer(layer, location, k, v)
        out = attend(
            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            self.token_to_kv_pool.get_key_buffer(layer.layer_id),
            self.token_to_kv_pool.get_value_buffer(layer.layer_id),
            self.req_to_token_pool.req_to_token,
            self.rows,
            layer.scaling,
        )
        return out.view(out.shape[0], -1)

    def support_triton(self) -> bool:
        """Triton has no driver on a CPU."""
        return False

    def _compile(self) -> None:
        """Compile the kernel for this KV dtype now, not within the first request."""
        pool = self.token_to_kv_pool
        keys = pool.get_key_buffer(pool.start_layer)
        if keys.dtype not in (torch.bfloat16, torch.float32):
            raise UnsupportedError(
                f"--dtype or --kv-cache-dtype gives {keys.dtype}; --attention-backend {NAME} "
                "computes with bfloat16 and float32: use --dtype bfloat16"
            )
        first = torch.zeros(1, dtype=torch.int64)
        attend(
            torch.zeros(1, keys.shape[1], keys.shape[2]),
            keys,
            pool.get_value_buffer(pool.start_layer),
            self.req_to_token_pool.req_to_token,
            prefix_rows(first, first + 1),
            1.0,
        )


class TetrisCpuDraftSteps:
    """The attention of SGLang's own draft models: a backend per draft step (draft_utils.py)."""

    def __init__(self, model_runner: Any, topk: int, num_steps: int) -> None:
        self._req_to_token = model_runner.req_to_token_pool.req_to_token
        self._topk = topk
        self._num_steps = num_steps
        self.attn_backends = [TetrisCpuBackend(model_runner) for _ in range(num_steps - 1)]

    def init_forward_metadata(self, forward_batch: ForwardBatch) -> None:
        """Work out the rows of all steps: the prefix, and a branch's own slots up to the step."""
        requests, lens = forward_batch.req_pool_indices, forward_batch.seq_lens
        window = lens[:, None] + torch.arange(self._topk * self._num_steps)
        slots = self._req_to_token[requests[:, None], window]
        branches = torch.arange(window.shape[1]).view(self._topk, self._num_steps)
        for last, backend in enumerate(self.attn_backends):
            attends = torch.zeros((self._topk, window.shape[1]), dtype=torch.bool)
            attends.scatter_(1, branches[:, : last + 1], True)
            backend.rows = window_rows(requests, lens, slots, attends.expand(len(lens), -1, -1))


def _masked_rows(forward_batch: ForwardBatch) -> Rows:
    """Return the rows of one of SGLang's own verify inputs, which are equally many per request."""
    verify_input = forward_batch.spec_info
    num_requests, width = forward_batch.batch_size, verify_input.draft_token_num
    mask = verify_input.custom_mask
    if mask is None or mask.numel() != num_requests * width * width:
        raise UnsupportedError(
            f"--attention-backend {NAME} verifies what comes with a tree mask of its own, and "
            f"{type(verify_input).__name__} does not; use --speculative-algorithm TETRIS"
        )
    return window_rows(
        forward_batch.req_pool_indices,
        forward_batch.seq_lens,
        forward_batch.out_cache_loc.view(num_requests, width),
        mask.view(num_requests, width, width).bool(),
    )


def _check_layer(layer: RadixAttention) -> None:
    """Refuse what the kernel does not compute; SGLang's warm-up forward comes here first."""
    if (
        layer.is_cross_attention
        or layer.attn_type != AttentionType.DECODER
        or (layer.logit_cap or 0) > 0
        or (layer.sliding_window_size or -1) > -1
    ):
        raise UnsupportedError(
            f"--attention-backend {NAME} computes plain causal attention, and this model has "
            "cross, bidirectional, capped or sliding-window layers; use torch_native without TETRIS"
        )
