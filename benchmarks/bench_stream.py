"""Does a subscriber that stalls slow the server whose steps it subscribed to?

    python benchmarks/bench_stream.py
    python benchmarks/bench_stream.py --rounds 200 --concurrency 8 --tokens 16

One server of the demo target publishes its steps to one subscriber that takes no message; first
it is kept busy until both their buffers are full. Each round then runs the same greedy requests
with and without the subscription, in alternating order, through the same full pipe. Other work on
the machine slows single rounds several times over, so the answer is the median of the rounds'
ratios and its distribution-free interval. At the end the subscriber takes what is left for it:
far fewer steps than were published, or it had not stalled. The last line on stdout is one JSON
object. What publishing a step costs when nobody listens is in bench_telemetry.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import zmq
from rich.console import Console
from rich.progress import track
from scipy.stats import quantile_test

from sglang_tetris.bench.environment import environment
from sglang_tetris.cli.launch import running_server
from sglang_tetris.cli.machine import num_usable_cores

FLAGS = ("--log-level", "warning", "--sleep-on-idle")
ARMS = ("nobody listens", "stalled subscriber")
STEPS_TO_FILL = 1500  # the server keeps 1,000 for a subscriber, the socket's buffers a few


def main() -> None:
    """Measure all rounds and print the ratio and the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=32, help="per request")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="flags of `serve`")
    args = parser.parse_args()

    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        endpoint = f"ipc://{directory}/steps"
        flags = [*FLAGS, "--tetris-step-stream", endpoint, *args.serve]
        server = stack.enter_context(running_server(flags, timeout_s=600))
        subscriber = stack.enter_context(stalled_subscriber(endpoint))
        subscriber.subscribe(b"")
        answer_seconds(server.base_url, args.concurrency, STEPS_TO_FILL)
        rounds = []
        for number in track(range(args.rounds), console=Console(stderr=True)):
            seconds = {}
            for arm in ARMS if number % 2 else reversed(ARMS):
                if arm == "stalled subscriber":
                    subscriber.subscribe(b"")
                else:
                    subscriber.unsubscribe(b"")
                time.sleep(0.1)  # until the server knows
                seconds[arm] = answer_seconds(server.base_url, args.concurrency, args.tokens)
            rounds.append(seconds)
        num_left = drain(subscriber)
    if num_left >= STEPS_TO_FILL:
        sys.exit(f"the subscriber was left {num_left} steps: it had not stalled")
    print(json.dumps(record(args, rounds, num_left)))


def record(
    args: argparse.Namespace, rounds: list[dict[str, float]], num_left: int
) -> dict[str, Any]:
    """Print the ratio and return what is printed last."""
    ratios = [of[ARMS[0]] / of[ARMS[1]] for of in rounds]
    low, high = quantile_test(ratios, p=0.5).confidence_interval(0.95)
    print(
        f"throughput with a stalled subscriber over that without: median {statistics.median(ratios):.4f} "
        f"[{low:.4f}, {high:.4f}] over {len(ratios)} rounds; {num_left} steps left for it"
    )
    return {
        "environment": environment(
            threads=num_usable_cores(), device="cpu", dtype="bfloat16"
        ).model_dump(),
        "concurrency": args.concurrency,
        "tokens": args.tokens,
        "serve": args.serve,
        "seconds": {arm: [of[arm] for of in rounds] for arm in ARMS},
        "steps_left": num_left,
        "ratio": {"median": statistics.median(ratios), "low": low, "high": high},
    }


@contextmanager
def stalled_subscriber(endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    """Connect a socket that keeps one message and asks the system for as little."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.rcvhwm = 1
        socket.rcvbuf = 2048
        socket.connect(endpoint)
        yield socket


def drain(subscriber: zmq.Socket[bytes]) -> int:
    """Return how many messages were waiting."""
    count = 0
    while subscriber.poll(1000):
        subscriber.recv()
        count += 1
    return count


def answer_seconds(base_url: str, concurrency: int, num_tokens: int) -> float:
    """Return how long as many equally long requests take at once."""
    params = {"temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True}

    def ask(number: int) -> None:
        body = {"text": f"{number}. one, two, three, one, two,", "sampling_params": params}
        httpx.post(f"{base_url}/generate", json=body, timeout=600).raise_for_status()

    start = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        list(pool.map(ask, range(concurrency)))
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
