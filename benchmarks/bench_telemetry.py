"""What does counting, publishing and tracing cost per step?

    python benchmarks/bench_telemetry.py
    python benchmarks/bench_telemetry.py --shapes 8x4 64x4

Requests times depth. No model and no server: the report of a step is made, handed over and counted, with nothing that
records, with each recorder alone, and with all. The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from sglang_tetris.core.acceptance import accept
from sglang_tetris.core.calibration import Calibration, score
from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.layout import lay_out
from sglang_tetris.core.selection import select
from sglang_tetris.engine.drafting import DraftRequests
from sglang_tetris.engine.history import TokenHistory

ARMS = ("counts only", "step log", "stream", "metrics", "trace", "all")


class Req:
    """A request, to be told apart."""


def main() -> None:
    """Measure every arm at every shape and print a table and the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="+", default=["8x4", "64x4"])
    parser.add_argument("--repeats", type=int, default=500)
    args = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    print(f"{'requests x depth':>18}" + "".join(f"{arm:>13}" for arm in ARMS))
    with tempfile.TemporaryDirectory() as directory:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = directory  # as SGLang's processes share them
        for shape in args.shapes:
            num_requests, depth = map(int, shape.split("x"))
            medians = {}
            for arm in ARMS:
                with telemetry(arm, Path(directory)) as subject:
                    medians[arm] = measure(subject, num_requests, depth, args.repeats)
            results.append({"num_requests": num_requests, "depth": depth, "median_us": medians})
            print(f"{shape:>18}" + "".join(f"{value:>11.0f}us" for value in medians.values()))
    environment = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
    print(json.dumps({"environment": environment, "repeats": args.repeats, "results": results}))


_counters: list[Any] = []  # SGLang's registry takes a name once


@contextmanager
def telemetry(arm: str, directory: Path) -> Iterator[Any]:
    """Enter with what counts, and record what the arm says."""
    # Late: the Prometheus client reads at import where its values are shared.
    from sglang_tetris.engine.prometheus import PrometheusCounters
    from sglang_tetris.engine.stream import StepLog, StepStream
    from sglang_tetris.engine.telemetry import Telemetry
    from sglang_tetris.engine.tracing import Tracer
    from sglang_tetris.trace import TraceHeader

    closed: list[Any] = []
    recorders: list[Any] = []
    tracer = None
    if arm in ("step log", "all"):
        closed.append(StepLog(directory / "steps.jsonl"))
    if arm in ("stream", "all"):
        closed.append(StepStream(f"ipc://{directory}/steps"))
    recorders += closed
    if arm in ("metrics", "all"):
        if not _counters:
            _counters.append(PrometheusCounters({"model_name": "m", "tp_rank": 0}))
        recorders += _counters
    if arm in ("trace", "all"):
        header = TraceHeader(model="m", draft_model=None, settings={}, version="0")
        tracer = Tracer(directory / "trace", header)
        closed.append(tracer)
    yield Telemetry(recorders, tracer)
    for recorder in closed:
        recorder.close()


def measure(subject: Any, num_requests: int, depth: int, repeats: int) -> float:
    """Return the median microseconds that a step pays."""
    report, consume = prepared(subject, num_requests, depth)
    samples = []
    for i in range(repeats + 20):
        start = time.perf_counter()
        output = report()
        consume(output, i)
        samples.append(time.perf_counter() - start)
    return statistics.median(samples[20:]) * 1e6


def prepared(
    subject: Any, num_requests: int, depth: int
) -> tuple[Callable[[], Any], Callable[[Any, int], None]]:
    """Return the two halves: in the worker, and where SGLang processes the result."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 50_000, (num_requests, depth), generator=generator)
    logprobs = torch.rand((num_requests, depth), generator=generator).log()
    trees = CandidateTrees.chains(tokens, logprobs, lens=[depth] * num_requests)
    scores = score(trees, Calibration.identity(1, depth), max_depth=depth)
    capacity = num_requests * depth // 2
    layout = lay_out(
        trees, select(scores, trees, capacity), torch.zeros(num_requests).long(), depth
    )
    first_draft = torch.where(layout.depths == 0, layout.token_ids.roll(-1), -2)
    acceptance = accept(layout, first_draft)  # one draft right wherever there is one
    requests = DraftRequests(
        batch=None,
        history=TokenHistory(1, 1, 1, "cpu"),
        req_pool_indices=torch.arange(num_requests),
        seq_lens=torch.full((num_requests,), 100),
        windows=torch.zeros((num_requests, depth + 1), dtype=torch.int64),
        max_lens=[depth] * num_requests,
        stop_token_ids=[frozenset()] * num_requests,
    )
    reqs = [Req() for _ in range(num_requests)]
    logits = torch.zeros(layout.num_verify, 1)
    phases = dict.fromkeys(("draft", "select", "verify", "sample", "commit"), 0.01)

    def report() -> Any:
        output = SimpleNamespace(auxiliary_device_output=None, next_token_logits=logits)
        subject.report_step(
            requests,
            trees=trees,
            scores=scores,
            capacity=capacity,
            layout=layout,
            acceptance=acceptance,
            timer=SimpleNamespace(seconds=phases),
            logits_output=output,
        )
        return output.auxiliary_device_output

    def consume(output: Any, step: int) -> None:
        commits = [SimpleNamespace(token_ids=(2 * step, 2 * step + 1)) for _ in reqs]
        host = output.copy_to_host(lambda tensor: tensor)
        host.consume(SimpleNamespace(reqs=reqs), commits)

    return report, consume


if __name__ == "__main__":
    main()
