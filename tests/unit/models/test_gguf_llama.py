"""A GGUF file comes out as the Hugging Face directory it was once made from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType
from safetensors.torch import load_file
from tokenizers import Tokenizer, pre_tokenizers

from sglang_tetris.errors import ModelError
from sglang_tetris.models.gguf_llama import convert

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, HIDDEN = 4, 2, 8, 32
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + sorted(
    pre_tokenizers.ByteLevel.alphabet()
)
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def llama_cpp_order(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Return the rows as llama.cpp stores them: the two halves of each head interleaved."""
    rows = [
        head * HEAD_DIM + half * HEAD_DIM // 2 + row
        for head in range(num_heads)
        for row in range(HEAD_DIM // 2)
        for half in range(2)
    ]
    return weight[rows]


def write_gguf(path: Path, weights: dict[str, np.ndarray], *, architecture: str = "llama") -> Path:
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(48)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(1e5)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS) + 2)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*TOKENS, "ab", "12"])
    writer.add_token_types([TokenType.CONTROL] * 3 + [TokenType.NORMAL] * (len(TOKENS) - 1))
    writer.add_token_merges(["a b", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for name, weight in weights.items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def converted(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    query = random.standard_normal((NUM_HEADS * HEAD_DIM, HIDDEN), dtype=np.float32)
    key = random.standard_normal((NUM_KV_HEADS * HEAD_DIM, HIDDEN), dtype=np.float32)
    norm = random.standard_normal(HIDDEN, dtype=np.float32)
    stored = {
        "blk.0.attn_q.weight": llama_cpp_order(query, NUM_HEADS),
        "blk.0.attn_k.weight": llama_cpp_order(key, NUM_KV_HEADS),
        "output_norm.weight": norm,
    }
    convert(write_gguf(tmp_path / "model.gguf", stored), tmp_path)
    return tmp_path, {
        "model.layers.0.self_attn.q_proj.weight": query,
        "model.layers.0.self_attn.k_proj.weight": key,
        "model.norm.weight": norm,
    }


def test_the_weights_are_the_original_ones_in_bf16(
    converted: tuple[Path, dict[str, np.ndarray]],
) -> None:
    directory, originals = converted

    weights = load_file(directory / "model.safetensors")

    assert weights.keys() == originals.keys()
    for name, original in originals.items():
        assert torch.equal(weights[name], torch.from_numpy(original).bfloat16())


def test_the_config_is_a_plain_llama_with_tied_embeddings(
    converted: tuple[Path, dict[str, np.ndarray]],
) -> None:
    directory, _ = converted

    config = json.loads((directory / "config.json").read_text())

    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["tie_word_embeddings"] is True
    assert config["rms_norm_eps"] == 1e-5
    assert "quantization_config" not in config
    assert json.loads((directory / "generation_config.json").read_text())["eos_token_id"] == 2


def test_the_tokenizer_splits_digits_merges_bytes_and_knows_special_tokens(
    converted: tuple[Path, dict[str, np.ndarray]],
) -> None:
    directory, _ = converted
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    encoded = tokenizer.encode("<|im_start|>ab 12é<|im_end|>")

    assert encoded.tokens == ["<|im_start|>", "ab", "Ġ", "1", "2", "Ã", "©", "<|im_end|>"]
    assert tokenizer.decode(encoded.ids) == "ab 12é"
    config = json.loads((directory / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|im_end|>"
    assert config["chat_template"] == TEMPLATE


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", {}, architecture="mamba")

    with pytest.raises(ModelError, match="general.architecture .* must be llama, not mamba"):
        convert(path, tmp_path)


def test_an_unknown_tensor_is_refused(tmp_path: Path) -> None:
    bias = {"blk.0.attn_q.bias": np.zeros(HIDDEN, dtype=np.float32)}

    with pytest.raises(ModelError, match=r"blk\.0\.attn_q\.bias"):
        convert(write_gguf(tmp_path / "model.gguf", bias), tmp_path)
