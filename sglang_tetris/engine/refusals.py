"""What TETRIS refuses at start-up: each option with the reason and the flag to change."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from sglang.srt.arg_groups.overrides import model_config_of, resolving_view
from sglang.srt.configs.hybrid_arch import mambaish_config
from sglang.srt.utils.hf_transformers_utils import get_config

from sglang_tetris.cpu.finder import is_cpu_engine
from sglang_tetris.engine.algorithm import CPU_BACKEND, LM
from sglang_tetris.errors import ModelError, UnsupportedError

# EAGLE's go the way of STANDALONE, with the same operators. NEXTN is SGLang's alias of EAGLE.
_FOREIGN_ON_A_CPU = ("NONE", "STANDALONE", "NGRAM", "EAGLE", "EAGLE3", "NEXTN")


def refuse_options(view: Any) -> None:
    """Raise ``UnsupportedError`` for the first option that does not go together with TETRIS."""
    is_cpu = is_cpu_engine()
    refused: list[tuple[bool, str, str]] = [
        (
            not is_cpu,
            "--device",
            "this version runs on SGLang's CPU engine only: set SGLANG_USE_CPU_ENGINE=1",
        ),
        (view.tp_size > 1, f"--tp-size {view.tp_size}", "ranks are not synchronised yet; use 1"),
        (
            view.dp_size > 1 or view.enable_dp_attention or view.attn_dp_size > 1,
            "--dp-size, --attn-dp-size or --enable-dp-attention",
            "every replica would select on its own with different shapes; run several servers "
            "behind SGLang's router",
        ),
        (
            view.pp_size > 1,
            f"--pp-size {view.pp_size}",
            "the draft and the selection live in one stage; use 1",
        ),
        (
            view.disaggregation_mode not in (None, "null"),
            f"--disaggregation-mode {view.disaggregation_mode}",
            "the draft's state does not travel between servers; leave it out",
        ),
        (
            bool(view.enable_lora or view.lora_paths),
            "--enable-lora or --lora-paths",
            "the draft has no adapters; leave it out",
        ),
        (
            view.speculative_use_rejection_sampling,
            "--speculative-use-rejection-sampling",
            "selection by the drawn token's probability would bias the text; leave it out",
        ),
        (
            view.grammar_backend == "outlines",
            "--grammar-backend outlines",
            "its grammars cannot step back from a draft; use xgrammar or llguidance",
        ),
        (
            view.enable_mixed_chunk,
            "--enable-mixed-chunk",
            "a verify forward is no prefill chunk; leave it out",
        ),
        (
            view.speculative_adaptive,
            "--speculative-adaptive",
            "the capacity decides how much is verified; use --tetris-policy",
        ),
        (
            view.enable_two_batch_overlap,
            "--enable-two-batch-overlap",
            "one selection spans the whole batch; leave it out",
        ),
        (
            is_cpu and (view.page_size or 1) > 1,
            f"--page-size {view.page_size}",
            "SGLang allocates whole pages with Triton kernels, which no CPU runs; use 1",
        ),
        (
            is_cpu and view.enable_deterministic_inference,
            "--enable-deterministic-inference",
            "SGLang has no such kernels on a CPU; leave it out",
        ),
    ]
    backends = {
        name: getattr(view, name)
        for name in ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
    }
    refused += [
        (
            backend not in (None, CPU_BACKEND),
            f"--{name.replace('_', '-')} {backend}",
            f"it has no ragged verification; leave it out, or use {CPU_BACKEND}",
        )
        for name, backend in backends.items()
    ]
    for is_given, flag, reason in refused:
        if is_given:
            raise UnsupportedError(f"{flag} does not go together with TETRIS: {reason}")
    _refuse_foreign_widths(view)


def refuse_foreign_algorithm(view: Any) -> None:
    """Raise for an algorithm of SGLang's own that its CPU engine cannot run with our backend."""
    if not is_cpu_engine() or view.attention_backend not in (None, CPU_BACKEND):
        return
    name = (view.speculative_algorithm or "NONE").upper()
    if name not in _FOREIGN_ON_A_CPU:
        raise UnsupportedError(
            f"--speculative-algorithm {name} does not run on the CPU engine: its kernels are for "
            "GPUs; use TETRIS, STANDALONE or NGRAM"
        )
    if name == "NGRAM":
        for program in (os.environ.get("CXX", "c++"), "ninja"):  # as tvm_ffi looks for them
            if shutil.which(program) is None:
                raise UnsupportedError(
                    "--speculative-algorithm NGRAM is compiled when it starts, and "
                    f"{program!r} is not installed; use TETRIS with --tetris-sources lookup"
                )


def _refuse_foreign_widths(view: Any) -> None:
    """SGLang's own width flags would contradict ``--tetris-draft-tokens``."""
    for name in ("num_steps", "eagle_topk", "num_draft_tokens"):
        if getattr(view, f"speculative_{name}") is not None:
            flag = "--speculative-" + name.replace("_", "-")
            raise UnsupportedError(
                f"{flag} is not read by TETRIS: use --tetris-draft-tokens for the depth of a draft"
            )


def refuse_model(server_args: Any, algorithm: str) -> None:
    """Raise for a target that TETRIS cannot verify or a draft that does not fit it."""
    target = model_config_of(server_args)
    kinds = {
        # SGLang's own word for it leaves out the models whose windows it keeps in a full pool.
        "a sliding-window model": target.is_hybrid_swa or _has_windows(target.hf_text_config),
        "a model with multi-dimensional rotary positions": target.model_is_mrope,
        "a hybrid or recurrent model": mambaish_config(target) is not None,
    }
    for kind, is_kind in kinds.items():
        if is_kind:
            raise UnsupportedError(
                f"--model-path {target.model_path} is {kind}; TETRIS serves plain causal attention"
            )
    if target.dtype not in (torch.bfloat16, torch.float32):
        raise UnsupportedError(
            f"--dtype gives {target.dtype} for this model; the CPU engine's attention computes "
            "with bfloat16 and float32: use --dtype bfloat16"
        )
    if algorithm == LM:
        _refuse_draft(target, resolving_view(server_args))


def _refuse_draft(target: Any, view: Any) -> None:
    """Compare what must be the same: a draft that numbers its tokens otherwise drafts nonsense."""
    path = view.speculative_draft_model_path
    named = f"--speculative-draft-model-path {path}"
    try:
        draft = get_config(
            path,
            trust_remote_code=view.trust_remote_code,
            revision=view.speculative_draft_model_revision,
        ).get_text_config()
    except (OSError, ValueError) as error:
        raise ModelError(f"{named}: {str(error).splitlines()[0]}") from None
    if _has_windows(draft):
        raise UnsupportedError(f"{named} is a sliding-window model; TETRIS drafts with plain ones")
    if draft.vocab_size != target.vocab_size:
        raise ModelError(
            f"{named} has a vocabulary of {draft.vocab_size} tokens, the target's has "
            f"{target.vocab_size}; they must be the same"
        )
    if draft.max_position_embeddings < target.context_len:
        raise ModelError(
            f"{named} reaches {draft.max_position_embeddings} positions and the target "
            f"{target.context_len}: the draft runs at the target's positions; "
            f"use --context-length {draft.max_position_embeddings}"
        )
    ours, theirs = _token_ids(Path(target.model_path)), _token_ids(Path(path))
    if ours is not None and theirs is not None and ours != theirs:
        raise ModelError(
            f"{named} gives its tokens other ids than the target does; "
            "the two must share one vocabulary"
        )


def _has_windows(config: Any) -> bool:
    return "sliding_attention" in (getattr(config, "layer_types", None) or ())


def _token_ids(model: Path) -> dict[str, int] | None:
    """Return the vocabulary of a local model, or None where there is no tokenizer.json."""
    file = model / "tokenizer.json"
    if not file.is_file():
        return None
    vocabulary: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))["model"]["vocab"]
    return vocabulary
