"""How far is a decode step on this CPU from the arithmetic and the memory traffic it cannot avoid?

    python benchmarks/bench_cpu_step.py
    python benchmarks/bench_cpu_step.py --rows 1 8 --contexts 256 --repeats 5 --limit 2.0

The step is SGLang's own: its model runner with the demo target, from the batch's tokens to the sampled
ones (sglang.benchmark.one_batch). The floor is that step's matrix products, each shape by the fastest of
torch's `linear`, oneDNN's packed product and ours, on 30 layers' weights in rotation, then reading
as many bytes as the step's keys and values have. Step and floor take turns. The last line on
stdout is one JSON object; with --limit the exit code is 1 if a ratio exceeds it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from sglang_tetris.cli.machine import num_usable_cores, use_cpu_engine

use_cpu_engine()  # before SGLang is imported

import numba  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from numba import prange  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402
from sglang.benchmark import one_batch  # noqa: E402
from sglang.srt.plugins import load_plugins  # noqa: E402
from sglang.srt.server_args import PortArgs, ServerArgs  # noqa: E402

from sglang_tetris.attention.cpu_kernel import set_num_threads  # noqa: E402
from sglang_tetris.bench.environment import environment  # noqa: E402
from sglang_tetris.cpu import panels  # noqa: E402
from sglang_tetris.models.demo_target import demo_target  # noqa: E402

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCABULARY = (
    *(576, 1536, 9, 3, 64, 30, 49152),
)
LAYER_SHAPES = (
    ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
    (HIDDEN, HEADS * HEAD_DIM),
    (2 * INTERMEDIATE, HIDDEN),
    (HIDDEN, INTERMEDIATE),
)
BYTES_PER_TOKEN = LAYERS * 2 * KV_HEADS * HEAD_DIM * 2


def main() -> None:
    """Measure every number of rows and context and print a table and the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--limit", type=float, help="exit with 1 above this ratio")
    args = parser.parse_args()
    args.rows = sorted(set(args.rows), reverse=True)

    load_plugins()
    runner = model_runner(max(args.rows), max(args.contexts) + 4 * args.repeats)
    torch.set_num_threads(num_usable_cores())
    set_num_threads(num_usable_cores())
    floors = Floors()
    results = []
    print(f"{'rows x context':>16}{'step':>12}{'floor':>12}{'ratio':>8}")
    for context in args.contexts:
        runner.clear()
        requests = one_batch.prepare_synthetic_inputs_for_latency_test(max(args.rows), context)
        for request in requests:
            request.rid = str(request.rid)  # as a server's are, which seeds are made of
        token_ids, _, batch = runner.extend(requests)
        for num_rows in args.rows:
            if num_rows < len(batch.reqs):
                batch.filter_batch(keep_indices=list(range(num_rows)))
            result = measure(runner, batch, token_ids[:num_rows], floors, context, args.repeats)
            results.append(result)
            name = f"{num_rows} x {context}"
            print(
                f"{name:>16}{result['step_ms']:>10.2f}ms{result['floor_ms']:>10.2f}ms"
                f"{result['ratio']:>8.2f}",
                flush=True,
            )
    print(json.dumps(record(args, results)))
    if args.limit is not None and any(result["ratio"] > args.limit for result in results):
        sys.exit(f"a step takes more than {args.limit:g} times its floor")


def record(args: argparse.Namespace, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is printed last."""
    ratios: dict[str, dict[str, float]] = {}
    for result in results:
        ratios.setdefault(str(result["context"]), {})[str(result["rows"])] = result["ratio"]
    return {
        "environment": environment(
            threads=torch.get_num_threads(), device="cpu", dtype="bfloat16"
        ).model_dump(),
        "repeats": args.repeats,
        "results": results,
        "step_over_floor": ratios,
    }


def model_runner(max_requests: int, most_tokens: int) -> Any:
    """Return SGLang's model runner of the demo target, as `sglang-tetris serve` would set it up."""
    server_args = ServerArgs(
        model_path=str(demo_target()),
        device="cpu",
        max_total_tokens=max_requests * most_tokens,
        max_running_requests=max_requests,
        mem_fraction_static=0.5,
        log_level="error",
    )
    server_args.resolve_once()
    one_batch.publish(
        server_args,
        role="scheduler",
        ranks=one_batch.SpawnRanks(
            world_rank=one_batch.spawn_world_rank(server_args, tp_rank=0, pp_rank=0), gpu_id=0
        ),
    )
    one_batch._init_process_global_configs()
    runner, _ = one_batch.load_model(server_args, PortArgs.init_new(server_args), 0, 0)
    return runner


def measure(
    runner: Any, batch: Any, token_ids: torch.Tensor, floors: Floors, context: int, repeats: int
) -> dict[str, Any]:
    """Return the medians of a step and of its floor, measured in turns."""
    num_rows = len(batch.reqs)
    kv = np.zeros(num_rows * context * BYTES_PER_TOKEN // 8, np.int64)
    steps, read = [], []
    products: dict[str, list[float]] = {}
    for _ in track(range(repeats + 2), console=Console(stderr=True), transient=True):
        start = time.perf_counter()
        token_ids, _ = runner.decode(token_ids, batch)
        steps.append(time.perf_counter() - start)
        for name, seconds in floors.seconds(num_rows):
            products.setdefault(name, []).append(seconds)
        start = time.perf_counter()
        add_up(kv, torch.get_num_threads())
        read.append(time.perf_counter() - start)
    medians = {name: statistics.median(of[2:]) for name, of in products.items()}
    fastest = {
        shape: min(of_shape(medians, shape).items(), key=lambda item: item[1])
        for shape in floors.shapes
    }
    floor = sum(seconds for _, seconds in fastest.values()) + statistics.median(read[2:])
    step = statistics.median(steps[2:])
    return {
        "rows": num_rows,
        "context": context,
        "step_ms": step * 1e3,
        "floor_ms": floor * 1e3,
        "ratio": step / floor,
        "kv_ms": statistics.median(read[2:]) * 1e3,
        "kv_gb_per_s": kv.nbytes / statistics.median(read[2:]) / 1e9,
        "products_ms": {name: seconds * 1e3 for name, seconds in medians.items()},
        "fastest": {shape: name for shape, (name, _) in fastest.items()},
    }


def of_shape(medians: dict[str, float], shape: str) -> dict[str, float]:
    """Return the seconds of each way to take the products of one shape."""
    return {
        name.split(" ")[1]: seconds
        for name, seconds in medians.items()
        if name.startswith(shape + " ")
    }


class Floors:
    """The weights of all products in each format, and what one pass over them takes."""

    def __init__(self) -> None:
        self._weights = {
            f"{outputs}x{width}": [torch.randn(outputs, width).bfloat16() for _ in range(count)]
            for (outputs, width), count in [
                *((shape, LAYERS) for shape in LAYER_SHAPES),
                ((VOCABULARY, HIDDEN), 1),
            ]
        }
        self.shapes = list(self._weights)
        self._reordered = {
            shape: [torch.ops.mkldnn._reorder_linear_weight(weight, None) for weight in weights]
            for shape, weights in self._weights.items()
        }
        self._panels = {
            shape: [panels.pack(weight) for weight in weights]
            for shape, weights in self._weights.items()
            if all(map(panels.can_pack, weights))
        }

    def seconds(self, num_rows: int) -> list[tuple[str, float]]:
        """Return (shape and format, seconds of all products of that shape)."""
        found = []
        with torch.inference_mode():
            for shape, weights in self._weights.items():
                x = torch.randn(num_rows, weights[0].shape[1]).bfloat16()
                found.append((f"{shape} linear", timed(_linears, x, weights)))
                found.append((f"{shape} onednn", timed(_pointwise, x, self._reordered[shape])))
                if shape in self._panels:
                    found.append((f"{shape} panels", timed(_panels, x, self._panels[shape])))
        return found


def timed(products: Callable[[torch.Tensor, Sequence[torch.Tensor]], None], *args: Any) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    products(*args)
    return time.perf_counter() - start


def _linears(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> None:
    for weight in weights:
        torch.nn.functional.linear(x, weight)


def _pointwise(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> None:
    for weight in weights:
        torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def _panels(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> None:
    out = torch.empty((x.shape[0], weights[0].shape[0]), dtype=torch.bfloat16)
    addresses = np.array([weight.data_ptr() for weight in weights])
    _multiply_all(
        x.data_ptr(), *x.shape, addresses, out.shape[1], out.data_ptr(), panels.CONFIGURATIONS,
        torch.get_num_threads(),
    )  # fmt: skip


@numba.njit(nogil=True)
def _multiply_all(
    x: Any, num_rows: Any, width: Any, weights: Any, num_outputs: Any, out: Any, configurations: Any,
    num_threads: Any,
) -> None:  # fmt: skip
    for weight in weights:
        panels.multiply(
            x, num_rows, width, weight, num_outputs, out, panels.WRITE, configurations, num_threads
        )


@numba.njit(parallel=True, nogil=True)
def add_up(numbers: Any, num_threads: Any) -> Any:
    """Read an array once, each thread its part."""
    totals = np.zeros(num_threads, np.int64)
    for thread in prange(num_threads):
        total = np.int64(0)
        first = panels.share(thread, num_threads, numbers.shape[0])
        for i in range(first, panels.share(thread + 1, num_threads, numbers.shape[0])):
            total += numbers[i]
        totals[thread] = total
    return totals


if __name__ == "__main__":
    main()
