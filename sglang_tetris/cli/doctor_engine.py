"""What the doctor checks of the CPU engine and of the demo target, each on a tiny example."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection

from sglang_tetris.cli.doctor_plugin import CheckError
from sglang_tetris.cli.machine import has_cuda, num_usable_cores

_CHILD_TIMEOUT_S = 60.0
_NUM_ROWS = 48
_GROUPS = (1, 2, 3, 8)  # rows multiplied at a time
_TOLERANCE = 1e-5
# What the demo target multiplies by: width in, width out.
_PRODUCTS = {"qkv": (576, 960), "o": (576, 576), "gate_up": (576, 3072), "down": (1536, 576)}
_REPORT = "please report it together with the lines above"


def check_engine() -> str:
    """What the computation runs on."""
    import torch

    found = f"CPU engine, {torch.backends.cpu.get_cpu_capability()}"
    threads = os.environ["OMP_NUM_THREADS"]
    found += f", {threads} threads on {num_usable_cores()} usable cores"
    return found + (", CUDA device not used by this version" if has_cuda() else "")


def check_child() -> str:
    """SGLang's processes are spawned: the operators must be there before any of its modules."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_look_around, args=(theirs,))
    child.start()
    theirs.close()
    try:
        if not ours.poll(_CHILD_TIMEOUT_S):
            raise CheckError(f"no answer in {_CHILD_TIMEOUT_S:.0f} s; is the machine overloaded?")
        operators, has_algorithm = ours.recv()
    except EOFError:
        raise CheckError("it died while it imported SGLang; its message is above") from None
    finally:
        child.kill()
        child.join()
    if not has_algorithm:
        raise CheckError("SGLang did not load the plugin there; reinstall sglang-tetris with pip")
    return f"sgl_kernel is {operators}, and SGLang loads the plugin"


def _look_around(connection: Connection) -> None:
    import sgl_kernel
    from sglang.srt.plugins import load_plugins
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    load_plugins()
    try:
        has_algorithm = SpeculativeAlgorithm.from_string("TETRIS").is_speculative()
    except ValueError:
        has_algorithm = False
    connection.send((sgl_kernel.__file__, has_algorithm))


def check_operators() -> str:
    """The operators that SGLang's bookkeeping calls, each where it calls them."""
    import torch
    from sglang.kernels.ops.kvcache.cache_move import copy_all_layer_kv_cache_func
    from sglang.kernels.ops.speculative.cache_locs import assign_extend_cache_locs_func
    from sglang.srt.mem_cache.allocation import assign_req_to_token_pool_func

    requests, starts, ends = torch.tensor([1, 0]), torch.tensor([1, 0]), torch.tensor([3, 2])
    slots = torch.tensor([7, 8, 5, 6])
    pool = torch.zeros(2, 4, dtype=torch.int32)
    assign_req_to_token_pool_func(requests, pool, starts, ends, slots, 2)
    _expect("assign_req_to_token_pool_cpu", pool.tolist(), [[5, 6, 0, 0], [0, 7, 8, 0]])
    read = assign_extend_cache_locs_func(
        req_pool_indices=requests,
        req_to_token=pool,
        start_offset=starts,
        end_offset=ends,
        batch_size=2,
        draft_token_num=2,
        device="cpu",
    )
    _expect("assign_extend_cache_locs_cpu", read.tolist(), slots.tolist())
    buffer = torch.arange(4.0)
    address = torch.tensor([buffer.data_ptr()], dtype=torch.uint64)
    stride = torch.tensor([buffer.element_size()])
    copy_all_layer_kv_cache_func(
        address, stride, torch.tensor([0, 1]), torch.tensor([1, 3]), 2, 2, {}
    )
    _expect("copy_all_layer_kv_cache_cpu", buffer.tolist(), [1.0, 3.0, 2.0, 3.0])
    return "3 compute what they should"


def check_attention() -> str:
    """The kernel compiles, and agrees with torch."""
    import torch

    from sglang_tetris.attention.cpu_kernel import attend, set_num_threads
    from sglang_tetris.attention.rows import prefix_rows

    set_num_threads(torch.get_num_threads())
    generator = torch.Generator().manual_seed(0)
    num_keys, num_heads, num_kv_heads, width = 37, 9, 3, 64  # heads as in the demo target
    query = torch.randn(1, num_heads, width, generator=generator)
    keys, values = (
        torch.randn(num_keys, num_kv_heads, width, generator=generator).bfloat16() for _ in range(2)
    )
    slots = torch.randperm(num_keys, generator=generator)
    rows = prefix_rows(torch.tensor([0]), torch.tensor([num_keys]))
    found = attend(query, keys, values, slots[None].int(), rows, width**-0.5)

    expected = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1),
        keys[slots].float().transpose(0, 1),
        values[slots].float().transpose(0, 1),
        enable_gqa=True,
    ).transpose(0, 1)
    difference = (found - expected).abs().max().item()
    if not difference < _TOLERANCE:
        raise CheckError(f"differs from torch by {difference:.1e}; {_REPORT}")
    return f"compiled, within {difference:.0e} of torch"


def check_products() -> str:
    """A row has the same bits alone and in company: else text would depend on the batch."""
    import torch
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

    generator = torch.Generator().manual_seed(0)
    apply = UnquantizedLinearMethod().apply
    for name, (width_in, width_out) in _PRODUCTS.items():
        weight = torch.randn(width_out, width_in, generator=generator).bfloat16()
        layer = torch.nn.Module()
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)
        x = torch.randn(_NUM_ROWS, width_in, generator=generator).bfloat16()
        together = apply(layer, x)
        for size in _GROUPS:
            groups = torch.split(x, size)
            if not torch.equal(torch.cat([apply(layer, rows) for rows in groups]), together):
                raise CheckError(f"{name}: rows differ {size} at a time and together; {_REPORT}")
    return f"rows have the same bits alone and in company, {len(_PRODUCTS)} shapes"


def check_demo_target() -> str:
    """Every byte of it, unless it has not been made."""
    from sglang_tetris.models import demo_target

    if not demo_target.directory().exists():
        return "not made yet: the first demo makes it"
    demo_target.verify()
    return f"whole, in {demo_target.directory()}"


def _expect(operator: str, found: object, expected: object) -> None:
    if found != expected:
        raise CheckError(f"sgl_kernel.{operator} gave {found}, not {expected}; {_REPORT}")


def check_sampler() -> str:
    """It is what SGLang will draw with, and draws as its definition says."""
    import torch
    from sglang.srt.layers.sampler import _CUSTOM_SAMPLER_FACTORIES

    from sglang_tetris.core import sampling
    from sglang_tetris.core.noise import uniforms
    from sglang_tetris.cpu import sampling as cpu_sampling
    from sglang_tetris.engine import sampler

    for name in (sampler.BACKEND, sampler.CPU_BACKEND):
        if _CUSTOM_SAMPLER_FACTORIES.get(name) is not sampler.TetrisSampler:
            raise CheckError(
                f"SGLang does not draw with ours as {name}; reinstall sglang-tetris with pip"
            )
    num_rows = 64
    torch.manual_seed(0)
    logits = 3 * torch.randn(num_rows, 1000)
    filters = sampling.Filters(
        temperatures=torch.full((num_rows,), 0.8),
        top_ks=torch.full((num_rows,), 40),
        top_ps=torch.full((num_rows,), 0.9),
        min_ps=torch.full((num_rows,), 0.01),
    )
    numbers = uniforms(torch.arange(num_rows), torch.arange(num_rows))
    drawn = cpu_sampling.draw(logits, filters, numbers)
    if not torch.equal(drawn, sampling.draw(logits, filters, numbers)):
        raise CheckError("the CPU's draw is not its definition's; please report it")
    return f"{num_rows} rows drawn as defined"
