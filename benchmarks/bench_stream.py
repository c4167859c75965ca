"""Does publishing every step slow a server, if nobody listens or a listener stalls?

    python benchmarks/bench_stream.py
    python benchmarks/bench_stream.py --rounds 12 --concurrency 8 --tokens 128

Two servers of the demo target, of which one publishes; the idle one sleeps. Each round runs the
same greedy requests with no stream, with a stream that nobody reads, and with a subscriber that
never takes a message. Ratios are taken within a round. The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import torch
import zmq

from sglang_tetris.cli.launch import running_server

ARMS = ("no stream", "nobody listens", "stalled subscriber")
QUIET = ("--log-level", "warning")


def main() -> None:
    """Measure all rounds and print a table and the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96, help="per request")
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
            tokens_per_s(server.base_url, args.concurrency, args.tokens)  # warm-up
        rounds = []
        for number in range(args.rounds):
            rates = {}
            for arm in ARMS[number % 3 :] + ARMS[: number % 3]:  # each arm in each place
                with stalled_subscriber(endpoint if arm == "stalled subscriber" else None):
                    url = servers[arm].base_url
                    rates[arm] = tokens_per_s(url, args.concurrency, args.tokens)
            rounds.append(rates)
            print("  ".join(f"{arm}: {rates[arm]:.1f} tokens/s" for arm in ARMS))
    print(json.dumps(record(args, rounds)))


def record(args: argparse.Namespace, rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return what is printed last."""
    ratios = {
        arm: [rates[arm] / rates["no stream"] for rates in rounds] for arm in ARMS if arm != ARMS[0]
    }
    for arm, values in ratios.items():
        print(f"{arm}: {statistics.median(values):.3f} of no stream (median of {len(values)})")
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
        "tokens_per_s": {arm: [rates[arm] for rates in rounds] for arm in ARMS},
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


def tokens_per_s(base_url: str, concurrency: int, num_tokens: int) -> float:
    """Return the throughput of as many equally long requests at once."""
    params = {"temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True}

    def ask(number: int) -> None:
        body = {"text": f"{number}. one, two, three, one, two,", "sampling_params": params}
        httpx.post(f"{base_url}/generate", json=body, timeout=600).raise_for_status()

    start = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        list(pool.map(ask, range(concurrency)))
    return concurrency * num_tokens / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
