"""What does attention over rows cost per layer on this CPU?

    python benchmarks/bench_attention.py
    python benchmarks/bench_attention.py --shapes 8x256 8x2048 --threads 1

Rows times context, in the head layout of the demo target (9 query heads, 3 KV heads of 64), bfloat16 KV in
scattered slots. The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time

import numba
import torch

from sglang_tetris.attention.cpu_kernel import attend, set_num_threads
from sglang_tetris.attention.rows import prefix_rows

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 9, 3, 64


def main() -> None:
    """Measure every shape and print a table and the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=["1x256", "8x256", "32x256", "8x2048"])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    set_num_threads(args.threads)

    results = []
    print(f"{'rows x context':>16}{'median':>12}")
    for shape in args.shapes:
        num_rows, context = map(int, shape.split("x"))
        median_us = measure(num_rows, context, args.repeats)
        results.append({"rows": num_rows, "context": context, "median_us": median_us})
        print(f"{shape:>16}{median_us:>10.0f}us")
    environment = {
        "torch": torch.__version__,
        "numba": numba.__version__,
        "python": platform.python_version(),
        "threads": args.threads,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    print(json.dumps({"environment": environment, "repeats": args.repeats, "results": results}))


def measure(num_rows: int, context: int, repeats: int) -> float:
    """Return the median microseconds of one layer's attention."""
    num_slots = num_rows * context
    keys = torch.randn(num_slots, NUM_KV_HEADS, HEAD_DIM).bfloat16()
    values = torch.randn(num_slots, NUM_KV_HEADS, HEAD_DIM).bfloat16()
    table = torch.randperm(num_slots).view(num_rows, context).int()
    query = torch.randn(num_rows, NUM_HEADS, HEAD_DIM).bfloat16()
    rows = prefix_rows(torch.arange(num_rows), torch.full((num_rows,), context))
    times = []
    for _ in range(repeats + 3):
        start = time.perf_counter()
        attend(query, keys, values, table, rows, HEAD_DIM**-0.5)
        times.append(time.perf_counter() - start)
    return statistics.median(times[3:]) * 1e6


if __name__ == "__main__":
    main()
