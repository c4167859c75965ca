"""The one SGLang that we are built for, and the functions of it that we hook, with the reason.

What SGLang offers for registration is used in ``registration``. ``tests/contract`` checks that
every hooked function and every name that the package imports from SGLang still exists.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from sglang_tetris.errors import EngineMismatchError

SUPPORTED_VERSION = "0.5.23"

# AFTER: SGLang's parser has no seam for a plugin's flags.
ADD_CLI_ARGS = "sglang.srt.server_args.ServerArgs.add_cli_args"
# AFTER: the parsed flags must reach the scheduler's process with the record.
FROM_CLI_ARGS = "sglang.srt.server_args.ServerArgs.from_cli_args"
# AROUND, CPU engine only: few rows take another product kernel than many (cpu/products.py).
LINEAR_APPLY = "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply"
LM_HEAD = "sglang.srt.layers.logits_processor.LogitsProcessor._compute_lm_head"
# AROUND: where a request leaves for the scheduler; every one needs a seed (engine/seeds.py).
SEND_ONE = "sglang.srt.managers.tokenizer_manager.TokenizerManager._send_one_request"
SEND_BATCH = "sglang.srt.managers.tokenizer_manager.TokenizerManager._send_batch_request"
# AFTER: a placeholder that SGLang calls for what others add to a batch's parameters: the seeds.
SAMPLING_INFO = (
    "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.adjusted_from_schedule_batch"
)
# AROUND, CPU engine only: SGLang forgets the penalties of a retracted request, and compiles their
# application when the first request asks for it (engine/penalties.py).
APPLY_PENALTIES = "sglang.srt.sampling.penaltylib.orchestrator.BatchedPenalizerOrchestrator.apply"
UPDATE_PENALTIES = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.update_penalties"
SCALE = "sglang.srt.sampling.penaltylib.repetition_penalty.apply_scaling_penalties"
# AFTER: where the scheduler chooses what sends its answers; then it has a worker and metrics.
OUTPUT_STREAMER = "sglang.srt.managers.scheduler.Scheduler.get_output_streamer_class"
# AROUND: further fields of an answer arrive as lists over tokens; ours are of the whole request.
UPDATE_META_INFO = "sglang.srt.managers.tokenizer_manager.TokenizerManager.update_request_meta_info"
# AROUND, CPU engine only: SGLang's own draft models find their attention in a fixed table.
DRAFT_BACKEND = "sglang.srt.speculative.draft_utils.DraftBackendFactory._create_backend"
# AROUND, CPU engine only: SGLang compiles this when the first draft asks for it.
SELECT_TOP_K = "sglang.srt.speculative.spec_utils._select_top_k_tokens_later"
HOOKED = (
    ADD_CLI_ARGS,
    FROM_CLI_ARGS,
    LINEAR_APPLY,
    LM_HEAD,
    SEND_ONE,
    SEND_BATCH,
    SAMPLING_INFO,
    APPLY_PENALTIES,
    UPDATE_PENALTIES,
    SCALE,
    OUTPUT_STREAMER,
    UPDATE_META_INFO,
    DRAFT_BACKEND,
    SELECT_TOP_K,
)


def check_version() -> None:
    """Raise ``EngineMismatchError`` unless the installed SGLang is the supported one."""
    try:
        found = version("sglang")
    except PackageNotFoundError:
        found = "none"
    if found != SUPPORTED_VERSION:
        raise EngineMismatchError(
            f"sglang-tetris is built for SGLang {SUPPORTED_VERSION}, found {found}; "
            f"pip install sglang=={SUPPORTED_VERSION}"
        )


def hook_after(target: str, after: Callable[..., Any]) -> None:
    """Run ``after(result, *args)`` behind SGLang's function; its return replaces the result."""
    _register(target, after, "AFTER")


def hook_around(target: str, around: Callable[..., Any]) -> None:
    """Run ``around(original, *args)`` in place of SGLang's function."""
    _register(target, around, "AROUND")


def _register(target: str, function: Callable[..., Any], kind: str) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    resolve(target)  # SGLang only logs a hook whose target is gone
    HookRegistry.register(target, function, HookType[kind])


def resolve(target: str) -> Any:
    """Return the object that a hook's dotted path names; raise ``EngineMismatchError`` if gone."""
    module_name, *attributes = target.split(".")
    found: Any = importlib.import_module(module_name)
    for depth, name in enumerate(attributes, start=2):
        if not hasattr(found, name):
            try:
                found = importlib.import_module(".".join(target.split(".")[:depth]))
            except ImportError:
                raise EngineMismatchError(
                    f"SGLang {SUPPORTED_VERSION} should have {target}, and this one does not; "
                    f"pip install --force-reinstall sglang=={SUPPORTED_VERSION}"
                ) from None
        else:
            found = getattr(found, name)
    return found
