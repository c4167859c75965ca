"""What do scoring, selection, layout and acceptance cost per step?

    python benchmarks/bench_selection.py
    python benchmarks/bench_selection.py --shapes 8x4 64x8 --threads 2

Core only: no model, no SGLang. Chains with random probabilities, capacity of half the candidates.
The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from sglang_tetris.core.acceptance import accept
from sglang_tetris.core.calibration import Calibration, score
from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.layout import lay_out
from sglang_tetris.core.selection import select


def main() -> None:
    """Measure every shape and print a table and the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=["1x4", "8x4", "64x8", "256x8"])
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    results = []
    print(
        f"{'requests x depth':>18}"
        + "".join(f"{p:>10}" for p in ("score", "select", "lay out", "accept"))
    )
    for shape in args.shapes:
        num_requests, depth = map(int, shape.split("x"))
        phases = measure(num_requests, depth, args.repeats)
        results.append({"num_requests": num_requests, "depth": depth, "median_us": phases})
        print(f"{shape:>18}" + "".join(f"{value:>9.0f}u" for value in phases.values()))
    environment = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": args.threads,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    print(json.dumps({"environment": environment, "repeats": args.repeats, "results": results}))


def measure(num_requests: int, depth: int, repeats: int) -> dict[str, float]:
    """Return the median microseconds of each phase of one step."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 50_000, (num_requests, depth), generator=generator)
    logprobs = torch.rand(num_requests, depth, generator=generator).log()
    trees = CandidateTrees.chains(tokens, logprobs, lens=[depth] * num_requests)
    calibration = Calibration.identity(1, depth)
    roots = torch.zeros(num_requests, dtype=torch.int64)
    capacity = num_requests * depth // 2

    scores = score(trees, calibration, max_depth=depth)
    selected = select(scores, trees, capacity)
    layout = lay_out(trees, selected, roots, depth)
    sampled = torch.where(
        torch.rand(layout.num_verify, generator=generator) < 0.5, 1, layout.token_ids
    )
    return {
        "score": median_us(lambda: score(trees, calibration, max_depth=depth), repeats),
        "select": median_us(lambda: select(scores, trees, capacity), repeats),
        "lay_out": median_us(lambda: lay_out(trees, selected, roots, depth), repeats),
        "accept": median_us(lambda: accept(layout, sampled), repeats),
    }


def median_us(step: Callable[[], Any], repeats: int) -> float:
    """Return the median microseconds of a call, after a warm-up of a tenth as many calls."""
    for _ in range(max(1, repeats // 10)):
        step()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


if __name__ == "__main__":
    main()
