"""Write a GGUF file of the Llama architecture as a Hugging Face directory.

The weights come out in bf16 under the names and in the order that transformers and SGLang expect.
Only what the demo target has is covered: tied embeddings, no biases, plain rotary embedding and
SmolLM's byte-level BPE; anything else is refused rather than converted wrongly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor, TokenType
from gguf.quants import dequantize
from rich.console import Console
from rich.progress import track
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from sglang_tetris.errors import ModelError

_WHOLE_MODEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
_PER_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}


def convert(gguf_path: Path, directory: Path) -> None:
    """Fill ``directory`` with config, weights and tokenizer of the model in ``gguf_path``."""
    reader = GGUFReader(gguf_path)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    _refuse_unknown(metadata)

    weights = dict(
        _convert_tensor(tensor, metadata)
        for tensor in track(reader.tensors, "converting weights", console=Console(stderr=True))
    )
    # transformers looks for this mark before it trusts a file.
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)  # it comes readable by the owner only
    _tokenizer(metadata).save(str(directory / "tokenizer.json"))
    _write_json(directory / "config.json", _config(metadata))
    _write_json(directory / "generation_config.json", _special_ids(metadata))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config(metadata))


def _refuse_unknown(metadata: dict[str, Any]) -> None:
    expected = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "llama.rope.scaling.type": None,
    }
    for name, value in expected.items():
        if metadata.get(name) != value:
            raise ModelError(f"{name} of a GGUF file must be {value}, not {metadata.get(name)}")


def _convert_tensor(tensor: ReaderTensor, metadata: dict[str, Any]) -> tuple[str, torch.Tensor]:
    values = dequantize(tensor.data, tensor.tensor_type)
    if tensor.name.endswith("attn_q.weight"):
        values = _rotary_halves(values, num_heads=metadata["llama.attention.head_count"])
    elif tensor.name.endswith("attn_k.weight"):
        values = _rotary_halves(values, num_heads=metadata["llama.attention.head_count_kv"])
    # torch takes no read-only array, and that is what the unquantised norms are.
    values = np.require(values, requirements=["C", "W"])
    return _hugging_face_name(tensor.name), torch.from_numpy(values).to(torch.bfloat16)


def _rotary_halves(values: np.ndarray, *, num_heads: int) -> np.ndarray:
    """Undo llama.cpp's order of rows: it rotates neighbours, Hugging Face rotates half-heads."""
    pairs = values.reshape(num_heads, -1, 2, values.shape[-1])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _hugging_face_name(name: str) -> str:
    if name in _WHOLE_MODEL:
        return _WHOLE_MODEL[name]
    prefix, _, rest = name.partition(".")
    layer, _, kind = rest.partition(".")
    if prefix != "blk" or kind not in _PER_LAYER:
        raise ModelError(f"a GGUF file has the tensor {name}, which has no place in a Llama model")
    return f"model.layers.{layer}.{_PER_LAYER[kind]}"


def _config(metadata: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": metadata["llama.vocab_size"],
        "hidden_size": metadata["llama.embedding_length"],
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": metadata["llama.attention.head_count"],
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": metadata["llama.rope.dimension_count"],
        "max_position_embeddings": metadata["llama.context_length"],
        "rope_theta": metadata["llama.rope.freq_base"],
        # GGUF keeps it in float32; the shortest decimal of that is the 1e-05 it was written from.
        "rms_norm_eps": float(str(np.float32(metadata["llama.attention.layer_norm_rms_epsilon"]))),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        **_special_ids(metadata),
    }


def _special_ids(metadata: dict[str, Any]) -> dict[str, int]:
    return {
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
    }


def _tokenizer(metadata: dict[str, Any]) -> Tokenizer:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    token_ids = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=token_ids, merges=merges))
    # What GGUF calls "smollm": each digit alone, then GPT-2's pattern on bytes.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == TokenType.CONTROL
        ]
    )
    return tokenizer


def _tokenizer_config(metadata: dict[str, Any]) -> dict[str, Any]:
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    return {
        # NOTE: not GPT2Tokenizer, for which transformers would replace the digit splitting.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[metadata["tokenizer.ggml.eos_token_id"]],
        "pad_token": tokens[metadata["tokenizer.ggml.padding_token_id"]],
        "unk_token": tokens[metadata["tokenizer.ggml.unknown_token_id"]],
        "model_max_length": metadata["llama.context_length"],
        # Its default, but without it transformers warns or tidies spaces, depending on the version.
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata["tokenizer.chat_template"],
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
