"""What does drawing tokens cost, and how firm is a draw against rounding?

    SGLANG_USE_CPU_ENGINE=1 python benchmarks/bench_sampling.py
    SGLANG_USE_CPU_ENGINE=1 python benchmarks/bench_sampling.py --server  # and a real server's steps

Compares, interleaved, our draw on a CPU with the torch form of it, with SGLang's own sampler and
with Gumbel noise per token (what SGLang does where it honours seeds). The second table perturbs logits by up
to one bfloat16 step and counts the draws that change. The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sglang_tetris.core import sampling
from sglang_tetris.core.noise import uniforms
from sglang_tetris.core.sampling import Filters
from sglang_tetris.cpu import sampling as cpu_sampling

VOCAB_SIZE = 49152  # the demo target's
OPTIONS = {
    "temperature 0.8, top-p 0.9": (0.8, 1 << 30, 0.9, 0.0),
    "temperature 1": (1.0, 1 << 30, 1.0, 0.0),
    "top-k 40": (0.8, 40, 1.0, 0.0),
    "min-p 0.05": (0.8, 1 << 30, 1.0, 0.05),
}
BFLOAT16_STEP = 2.0**-8  # relative
Draw = Callable[[torch.Tensor, Filters, torch.Tensor], torch.Tensor]


def main() -> None:
    """Measure and print two tables and the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8, 24, 64])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--server", action="store_true", help="measure a server as well")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    costs = {
        f"{name}, {rows} rows": cost_ms(option, rows, args.repeats)
        for name, option in OPTIONS.items()
        for rows in args.rows
    }
    print(f"{'median ms':>36}" + "".join(f"{name:>12}" for name in draws()))
    for name, of_draws in costs.items():
        print(f"{name:>36}" + "".join(f"{ms:>12.2f}" for ms in of_draws.values()))
    changed = {name: share_changed(option) for name, option in OPTIONS.items()}
    print("\nshare of draws that a perturbation of one bfloat16 step changes")
    for name, shares in changed.items():
        print(f"{name:>36}" + "".join(f"  {draw} {share:.4f}" for draw, share in shares.items()))
    server = share_of_step() if args.server else None
    if server:
        print(f"\nserver: {server}")
    environment = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": args.threads,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    print(
        json.dumps({"environment": environment, "ms": costs, "changed": changed, "server": server})
    )


def draws() -> dict[str, Draw]:
    """Return the ways to draw, by name."""
    from sglang.srt.layers.sampler import (  # late: it loads the engine
        top_k_top_p_min_p_sampling_from_probs_torch,
    )

    def of_sglang(logits: torch.Tensor, filters: Filters, numbers: torch.Tensor) -> torch.Tensor:
        drawn: torch.Tensor = top_k_top_p_min_p_sampling_from_probs_torch(
            filters.scale(logits).softmax(dim=-1),
            filters.top_ks,
            filters.top_ps,
            filters.min_ps,
            bool((filters.min_ps > 0).any()),
            None,
            torch.zeros(len(logits)),
        )
        return drawn

    def gumbel(logits: torch.Tensor, filters: Filters, numbers: torch.Tensor) -> torch.Tensor:
        kept = sampling.kept_probs(filters.scale(logits).softmax(dim=-1), filters)
        seeds = (numbers * 2**53).long()[:, None].expand_as(kept)
        noise = uniforms(seeds, torch.arange(kept.shape[1])).log_().neg_().log_().neg_()
        return (kept.double().log() + noise).argmax(dim=-1)

    return {
        "ours": cpu_sampling.draw,
        "in torch": sampling.draw,
        "SGLang": of_sglang,
        "Gumbel": gumbel,
    }


def cost_ms(option: tuple[float, int, float, float], rows: int, repeats: int) -> dict[str, float]:
    """Return the median milliseconds of each way to draw ``rows`` tokens."""
    logits, filters, numbers = problem(option, rows)
    seconds: dict[str, list[float]] = {name: [] for name in draws()}
    for _ in range(repeats + 1):
        for name, draw in draws().items():
            start = time.perf_counter()
            draw(logits.clone(), filters, numbers)
            seconds[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(of_draw[1:]) for name, of_draw in seconds.items()}


def share_changed(option: tuple[float, int, float, float], rows: int = 1024) -> dict[str, float]:
    """Return how often each way draws another token from perturbed logits, numbers unchanged."""
    changed = dict.fromkeys(("ours", "Gumbel"), 0)
    for seed in range(rows // 64):
        logits, filters, numbers = problem(option, 64, seed=seed)
        noise = torch.rand_like(logits) * 2 - 1
        perturbed = logits * (1 + noise * BFLOAT16_STEP)
        for name in changed:
            draw = draws()[name]
            before, after = (draw(x.clone(), filters, numbers) for x in (logits, perturbed))
            changed[name] += int((before != after).sum())
    return {name: count / rows for name, count in changed.items()}


def problem(
    option: tuple[float, int, float, float], rows: int, seed: int = 0
) -> tuple[torch.Tensor, Filters, torch.Tensor]:
    """Return logits with the long tail of a language model's, filters, and numbers."""
    torch.manual_seed(seed)
    ranks = torch.stack([torch.randperm(VOCAB_SIZE) for _ in range(rows)]) + 1
    logits = 20 - 1.6 * ranks.log() + torch.randn(rows, VOCAB_SIZE)
    temperature, top_k, top_p, min_p = option
    filters = Filters(
        temperatures=torch.full((rows,), temperature),
        top_ks=torch.full((rows,), top_k),
        top_ps=torch.full((rows,), top_p),
        min_ps=torch.full((rows,), min_p),
    )
    return logits, filters, uniforms(torch.arange(rows) + 1000 * seed, torch.arange(rows))


def share_of_step(num_requests: int = 8, max_new_tokens: int = 192) -> dict[str, Any]:
    """Return the median share that sampling has of a server's steps with all requests running."""
    import httpx

    from sglang_tetris.cli.launch import running_server
    from sglang_tetris.metrics import read_step_log
    from sglang_tetris.models.demo_target import demo_target

    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "steps.jsonl"
        args = ["--model-path", str(demo_target()), "--tetris-step-log", str(log)]
        body = {
            "text": [
                f"Tell me {i} stories about rivers and their fish." for i in range(num_requests)
            ],
            "sampling_params": {
                "temperature": 0.8,
                "top_p": 0.9,
                "max_new_tokens": max_new_tokens,
                "ignore_eos": True,
                "sampling_seed": 1,
            },
        }
        with running_server(args) as server:
            for _ in range(3):
                httpx.post(f"{server.base_url}/generate", json=body, timeout=600).raise_for_status()
        steps = [step for step in read_step_log(log) if step.num_requests == num_requests]
    shares = [step.seconds["sample"] / sum(step.seconds.values()) for step in steps]
    return {
        "num_steps": len(steps),
        "rows_per_step": statistics.mean(step.num_rows for step in steps),
        "sample_ms": 1e3 * statistics.median(step.seconds["sample"] for step in steps),
        "sample_share": statistics.median(shares),
    }


if __name__ == "__main__":
    main()
