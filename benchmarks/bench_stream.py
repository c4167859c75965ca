"""Does publishing every step slow a server, if nobody listens or a listener stalls?

    python benchmarks/bench_stream.py
    python benchmarks/bench_stream.py --rounds 60 --concurrency 8 --tokens 32

Two servers of the demo target, of which one publishes; the idle one sleeps. Each round runs the
same greedy requests with no stream, with a stream that nobody reads, and with a subscriber that
never takes a message. Rounds are short and many, for a machine's speed drifts; ratios are of the
totals, with intervals from the pairs. The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import torch
import zmq
from rich.console import Console
from rich.progress import track

from sglang_tetris.bench.intervals import Pair, paired_ratio
from sglang_tetris.cli.launch import running_server

ARMS = ("no stream", "nobody listens", "stalled subscriber")
QUIET = ("--log-level", "warning", "--sleep-on-idle")


def main() -> None:
    """Measure all rounds and print a table and the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="per request")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="flags of `serve`")
    args = parser.parse_args()

    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        endpoint = f"ipc://{directory}/steps"
        quiet = stack.enter_context(running_server([*QUIET, *args.serve], timeout_s=600))
        publishing = stack.enter_context(
            running_server([*QUIET, "--tetris-step-stream", endpoint, *args.serve], timeout_s=600)
        )
        servers = {arm: quiet if arm == "no stream" else publishing for arm in ARMS}
        for server in (quiet, publishing):
            answer_seconds(server.base_url, args.concurrency, args.tokens)  # warm-up
        rounds = []
        for number in track(range(args.rounds), console=Console(stderr=True)):
            seconds = {}
            for arm in ARMS[number % 3 :] + ARMS[: number % 3]:  # each arm in each place
                with stalled_subscriber(endpoint if arm == "stalled subscriber" else None):
                    url = servers[arm].base_url
                    seconds[arm] = answer_seconds(url, args.concurrency, args.tokens)
            rounds.append(seconds)
    print(json.dumps(record(args, rounds)))


def record(args: argparse.Namespace, rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Print a line for each ratio and return what is printed last."""
    num_tokens = args.concurrency * args.tokens
    ratios = {}
    for arm in ARMS[1:]:
        pairs = [Pair(0, num_tokens, of[arm], num_tokens, of[ARMS[0]]) for of in rounds]
        ratios[arm] = paired_ratio(pairs)._asdict()
        print(
            "{}: {estimate:.3f} [{low:.3f}, {high:.3f}] of the throughput without a stream".format(
                arm, **ratios[arm]
            )
        )
    return {
        "environment": {
            "torch": torch.__version__,
            "zmq": zmq.zmq_version(),
            "python": platform.python_version(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        },
        "concurrency": args.concurrency,
        "tokens": args.tokens,
        "serve": args.serve,
        "seconds": {arm: [of[arm] for of in rounds] for arm in ARMS},
        "ratios": ratios,
    }


@contextmanager
def stalled_subscriber(endpoint: str | None) -> Iterator[None]:
    """Listen, but take nothing: its buffers fill, and then the server's."""
    if endpoint is None:
        yield
        return
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.rcvhwm = 1
        socket.rcvbuf = 2048
        socket.subscribe(b"")
        socket.connect(endpoint)
        time.sleep(0.2)  # until the subscription has arrived
        yield


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
