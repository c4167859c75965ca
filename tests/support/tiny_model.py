"""A random Llama of 32 tokens: its servers start and speak fast, and its law is easily computed.

At temperature 1 its distributions are neither flat nor peaked: the likeliest token has about half
of the probability, so that a draft which is always the likeliest is right about half of the time.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from sglang_tetris.models.cache import cache_dir, ensure

VOCAB = 32
_HIDDEN = 64
_SEED = 0
_WEIGHT_STD = 0.2
_LOGIT_STD = 2.5  # the final norm's output has one entry of size 1 per hidden unit
SERVER_ARGS = ("--skip-tokenizer-init", "--dtype", "float32")  # it has no tokenizer


def tiny_model() -> Path:
    """Return the directory of the model, made on first use."""
    recipe = f"seed {_SEED}, weights {_WEIGHT_STD}, logits {_LOGIT_STD}, version 1"
    return ensure(cache_dir() / "tiny-random-llama", recipe, build=_build)


def token_probs(sequences: torch.Tensor) -> torch.Tensor:
    """Return the probabilities of the token after each place of the sequences [count, length].

    Transformers computes them, in float32: [count, length, VOCAB], summed in float64.
    """
    model = LlamaForCausalLM.from_pretrained(tiny_model(), dtype=torch.float32).eval()
    with torch.inference_mode():
        logits: torch.Tensor = model(sequences).logits
    return logits.double().softmax(dim=-1)


def _build(directory: Path) -> None:
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=_WEIGHT_STD,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(_LOGIT_STD / (_WEIGHT_STD * _HIDDEN**0.5))
    model.save_pretrained(directory)
