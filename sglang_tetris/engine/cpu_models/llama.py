"""Llama on the CPU engine: SGLang's model, with its decoder layers in one call (cpu/decoder.py).

SGLang takes the class from its registry of models by its name, and calls ``_init_model`` for what
stands between embedding and head.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.layers.linear import LinearBase
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.layers.rotary_embedding import RotaryEmbedding
from sglang.srt.model_executor.forward_context import get_attn_backend
from sglang.srt.models.llama import LlamaForCausalLM as SglangLlama
from sglang.srt.models.llama import LlamaModel
from sglang.srt.runtime_context import get_parallel

from sglang_tetris.attention.cpu import TetrisCpuBackend
from sglang_tetris.cpu import panels
from sglang_tetris.cpu.decoder import Decoder, Layer

logger = logging.getLogger(__name__)


class FusedLlamaModel(LlamaModel):
    """Runs all layers in one call if ``why_not`` has nothing against it, else as SGLang does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._decoder: Decoder | None = None
        self._is_prepared = False

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
        pp_proxy_tensors: Any = None,
    ) -> Any:
        """Return the normed states [num_rows, hidden_size]."""
        backend = get_attn_backend()
        if not self._is_prepared:
            self._prepare(backend)
        if self._decoder is None or self.layers_to_capture or not _is_ours(backend):
            return super().forward(
                input_ids, positions, forward_batch, input_embeds, pp_proxy_tensors
            )
        hidden = self.embed_tokens(input_ids) if input_embeds is None else input_embeds.clone()
        if hidden.shape[0] == 0:
            return hidden
        assert backend.rows is not None, "init_forward_metadata comes first"
        return self._decoder.forward(
            hidden,
            positions,
            forward_batch.out_cache_loc,
            backend.req_to_token_pool.req_to_token,
            backend.rows,
        )

    def why_not(self, backend: Any) -> str | None:
        """Return what keeps the layers from running in one call."""
        if not _is_ours(backend):
            return "its attention is not ours"
        if get_parallel().tp_size > 1 or get_parallel().pp_size > 1:
            return "it is spread over processes"
        pool = backend.token_to_kv_pool
        if pool.get_key_buffer(pool.start_layer).dtype != torch.bfloat16:
            return "its KV cache is not bfloat16"
        for layer in self.layers:
            for linear in _linears_of(layer):
                if not isinstance(linear.quant_method, UnquantizedLinearMethod):
                    return "it is quantised"
                if linear.bias is not None:
                    return "a linear layer has a bias"
                if not panels.can_pack(linear.weight):
                    return f"no AMX for {linear.weight.dtype} of {tuple(linear.weight.shape)}"
            attention = layer.self_attn
            rotary = attention.rotary_emb
            if type(rotary).forward_native is not RotaryEmbedding.forward_native or not (
                rotary.is_neox_style and rotary.rotary_dim == attention.head_dim
            ):
                return "its positions are encoded in another way"
            if attention.head_dim % 64:
                return f"its heads are {attention.head_dim} wide"
        return None

    def _prepare(self, backend: Any) -> None:
        reason = self.why_not(backend)
        self._is_prepared = True
        if reason is not None:
            logger.info("Llama's layers run one by one: %s", reason)
            return
        pool = backend.token_to_kv_pool
        layers = []
        for layer in self.layers:
            attention, mlp = layer.self_attn, layer.mlp
            for linear in _linears_of(layer):
                _pack(linear)
            layers.append(
                Layer(
                    input_norm=layer.input_layernorm.weight.data,
                    qkv=attention.qkv_proj.weight.data,
                    output=attention.o_proj.weight.data,
                    post_norm=layer.post_attention_layernorm.weight.data,
                    gate_up=mlp.gate_up_proj.weight.data,
                    down=mlp.down_proj.weight.data,
                    keys=pool.get_key_buffer(attention.attn.layer_id),
                    values=pool.get_value_buffer(attention.attn.layer_id),
                )
            )
        first = self.layers[0]
        self._decoder = Decoder(
            layers,
            self.norm.weight.data,
            epsilon=first.input_layernorm.variance_epsilon,
            scale=first.self_attn.scaling,
            rotary=first.self_attn.rotary_emb.cos_sin_cache,
        )

    def unpack(self) -> None:
        """Make the weights those of SGLang's model again; the next forward packs them."""
        self._decoder, self._is_prepared = None, False
        for layer in self.layers:
            for linear in _linears_of(layer):
                _unpack(linear)


class LlamaForCausalLM(SglangLlama):
    """SGLang's, around ``FusedLlamaModel``."""

    def _init_model(
        self, config: Any, quant_config: Any = None, prefix: str = ""
    ) -> FusedLlamaModel:
        return FusedLlamaModel(config, quant_config=quant_config, prefix=prefix)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        """Load as SGLang does, a part of the weights too."""
        with self._plain_weights():
            return super().load_weights(weights)

    def get_weights_by_name(self, *args: Any, **kwargs: Any) -> Any:
        """Return what SGLang returns."""
        with self._plain_weights():
            return super().get_weights_by_name(*args, **kwargs)

    @contextmanager
    def _plain_weights(self) -> Iterator[None]:
        self.model.unpack()
        forget_packed_head(self.lm_head)
        yield


def packed_product(linear: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
    """Return a linear layer's product if its weight is packed."""
    if not getattr(linear, _IS_PACKED, False):
        return None
    out = panels.product(x.reshape(-1, x.shape[-1]), linear.weight)
    return (out if bias is None else out + bias).view(*x.shape[:-1], out.shape[-1])


def packed_head(head: Any) -> torch.Tensor | None:
    """Return the packed weight of an output head, which is packed beside the weight at first; the
    embedding may be the same tensor. None where it cannot be packed."""
    packed: torch.Tensor | None = getattr(head, _HEAD, None)
    if packed is None and hasattr(head, "weight") and panels.can_pack(head.weight):
        packed = panels.pack(head.weight.data)
        setattr(head, _HEAD, packed)
    return packed


def forget_packed_head(head: Any) -> None:
    """Have the next use pack the head again."""
    if hasattr(head, _HEAD):
        delattr(head, _HEAD)


_IS_PACKED = "is_packed_by_tetris"
_HEAD = "weight_packed_by_tetris"


def _is_ours(backend: Any) -> bool:
    return isinstance(backend, TetrisCpuBackend)


def _linears_of(layer: Any) -> Iterator[LinearBase]:
    attention, mlp = layer.self_attn, layer.mlp
    return iter((attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj))


def _pack(linear: Any) -> None:
    if not getattr(linear, _IS_PACKED, False):
        linear.weight.data.copy_(panels.pack(linear.weight.data))
        setattr(linear, _IS_PACKED, True)


def _unpack(linear: Any) -> None:
    if getattr(linear, _IS_PACKED, False):
        linear.weight.data.copy_(panels.unpack(linear.weight.data))
        setattr(linear, _IS_PACKED, False)


EntryClass = LlamaForCausalLM
