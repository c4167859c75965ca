"""Everything the plugin registers with SGLang, in one place, in every process."""

from __future__ import annotations

import inspect
import os
from typing import Any

import torch
from sglang.srt.arg_groups.choices import add_attention_backend_choices
from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.sampler import register_sampler_backend
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from sglang_tetris.cpu.finder import is_cpu_engine
from sglang_tetris.cpu.panels import product
from sglang_tetris.cpu.products import ask_for_reproducible_products, by_independent_rows
from sglang_tetris.engine import arguments, compat, penalties, reporting, sampler, seeds
from sglang_tetris.engine.algorithm import ALGORITHMS, CPU_BACKEND, TetrisAlgorithm


def register_all() -> None:
    """Register the algorithms, their flags, the sampler, and what the CPU engine needs."""
    for name, spec_class in ALGORITHMS.items():
        SpeculativeAlgorithm.register(name, supports_overlap=True, spec_class=spec_class)(_worker)
    compat.hook_after(compat.ADD_CLI_ARGS, arguments.add_flags)
    compat.hook_after(compat.FROM_CLI_ARGS, arguments.keep_flags)
    register_resolution_hook("handle_deprecated_dp_attention")(arguments.refuse_unsupported)
    register_resolution_hook("handle_speculative_decoding")(arguments.resolve)
    register_sampler_backend(sampler.BACKEND, sampler.TetrisSampler)
    compat.hook_around(compat.SEND_ONE, _send_with_seed)
    compat.hook_around(compat.SEND_BATCH, _send_all_with_seeds)
    compat.hook_after(compat.SAMPLING_INFO, _add_seeds)
    compat.hook_after(compat.OUTPUT_STREAMER, _connect)
    compat.hook_around(compat.UPDATE_META_INFO, reporting.update_meta_info)
    if is_cpu_engine():
        ask_for_reproducible_products()
        _offer_models()
        register_sampler_backend(sampler.CPU_BACKEND, sampler.TetrisSampler)
        compat.hook_around(compat.APPLY_PENALTIES, _apply_penalties)
        compat.hook_around(compat.UPDATE_PENALTIES, _update_penalties)
        compat.hook_around(compat.SCALE, _scale)
        register_attention_backend(CPU_BACKEND)(_cpu_backend)
        add_attention_backend_choices([CPU_BACKEND])
        register_resolution_hook("handle_cpu_backends")(_set_cpu_defaults)
        compat.hook_around(compat.DRAFT_BACKEND, _draft_backend)
        compat.hook_around(compat.SELECT_TOP_K, _select_top_k)
        compat.hook_around(compat.LINEAR_APPLY, _linear_by_independent_rows)
        compat.hook_around(compat.LM_HEAD, _lm_head_by_independent_rows)


def _offer_models() -> None:
    """Have SGLang take our models for its own. It then imports its many others only if it needs
    one; the children that it spawns read the variable before any plugin is loaded."""
    package = "sglang_tetris.engine.cpu_models"
    if os.environ.setdefault("SGLANG_EXTERNAL_MODEL_PACKAGE", package) != package:
        from sglang.srt.models.registry import ModelRegistry

        ModelRegistry.register(package, overwrite=True)


def _worker(server_args: Any) -> type:
    from sglang_tetris.engine.worker import TetrisWorker  # late: it imports the scheduler

    return TetrisWorker


def _cpu_backend(model_runner: Any) -> Any:
    from sglang_tetris.attention.cpu import TetrisCpuBackend  # late: it compiles

    return TetrisCpuBackend(model_runner)


def _draft_backend(
    create: Any,
    factory: Any,
    backend_name: str,
    backend_map: dict[str, Any],
    error_template: str,
    stamps_children: bool = False,
) -> Any:
    """Let a draft model of SGLang's own algorithms attend with our backend."""
    from sglang_tetris.attention.cpu import TetrisCpuBackend, TetrisCpuDraftSteps  # as above

    def ours() -> tuple[str, Any]:
        runner = factory.draft_model_runner
        if not stamps_children:  # no draft steps, but their extension
            return CPU_BACKEND, TetrisCpuBackend(runner)
        steps = TetrisCpuDraftSteps(runner, factory.topk, factory.speculative_num_steps)
        return CPU_BACKEND, steps

    known = backend_map | {CPU_BACKEND: ours}
    return create(factory, backend_name, known, error_template, stamps_children=stamps_children)


def _select_top_k(select: Any, *args: Any) -> Any:
    return inspect.unwrap(select)(*args)


def _set_cpu_defaults(server_args: Any, previous: Any) -> None:
    """Attend with our backend unless another is asked for: SGLang's own choice on x86 needs AMX
    operators. Schedule between forwards, not beside them: on a CPU both want the same cores."""
    config = resolving_view(server_args)
    if config.device == "cpu":
        declare_resolution(
            server_args,
            "tetris",
            attention_backend=config.attention_backend or CPU_BACKEND,
            disable_overlap_schedule=not arguments.may_overlap(config.device),
        )
    previous(server_args)


def _send_with_seed(send: Any, manager: Any, request: Any) -> Any:
    if sampler.serves():
        seeds.give_seed(request)
    return send(manager, request)


def _send_all_with_seeds(send: Any, manager: Any, requests: list[Any]) -> Any:
    if sampler.serves():
        for request in requests:
            seeds.give_seed(request)
    return send(manager, requests)


def _add_seeds(_: None, sampling_info: Any, batch: Any, vocab_size: int) -> None:
    if sampler.serves():
        sampling_info.sampling_seed = seeds.seeds_of(batch.reqs, batch.device)


def _apply_penalties(
    apply: Any, orchestrator: Any, logits: torch.Tensor, repeat: int | None = None
) -> None:
    if repeat is None:
        penalties.apply(orchestrator, logits)
    else:  # the verification of one of SGLang's own algorithms
        apply(orchestrator, logits, repeat)


def _connect(streamer: type, scheduler: Any) -> type:
    is_ours = isinstance(scheduler.spec_algorithm, TetrisAlgorithm)
    return reporting.connect(scheduler, streamer) if is_ours else streamer


def _update_penalties(update: Any, sampling_info: Any) -> None:
    batch = sampling_info.penalizer_orchestrator.batch
    is_verify = batch.forward_mode.is_decode() and not batch.spec_algorithm.is_none()
    if is_verify and not isinstance(batch.spec_algorithm, TetrisAlgorithm):
        update(sampling_info)  # one of SGLang's own algorithms verifies with SGLang's penalties
    else:
        penalties.prepare(sampling_info)


def _scale(_: Any, logits: torch.Tensor, scaling_penalties: torch.Tensor) -> None:
    penalties.scale(logits, scaling_penalties)


def _linear_by_independent_rows(
    apply: Any, method: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    from sglang_tetris.engine.cpu_models.llama import packed_product

    product = packed_product(layer, x, bias)
    if product is not None:
        return product
    return by_independent_rows(lambda rows: apply(method, layer, rows, bias), x)


def _lm_head_by_independent_rows(
    compute: Any,
    processor: Any,
    hidden_states: torch.Tensor,
    lm_head: Any,
    embedding_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    from sglang_tetris.engine.cpu_models.llama import packed_head

    packed = None if processor.use_fp32_lm_head else packed_head(lm_head)
    if packed is not None and embedding_bias is None and hidden_states.dtype == torch.bfloat16:
        return product(hidden_states, packed)
    return by_independent_rows(
        lambda rows: compute(processor, rows, lm_head, embedding_bias, **kwargs), hidden_states
    )
