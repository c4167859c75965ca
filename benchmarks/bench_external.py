"""Do other load generators see the throughput that ours reports?

    python -m venv .guidellm && .guidellm/bin/pip install guidellm==0.8.1
    python benchmarks/bench_external.py DATA.jsonl --guidellm .guidellm/bin/guidellm
    python benchmarks/bench_external.py DATA.jsonl --serve --tetris-draft-tokens 4

One server of the demo target; three clients ask it for greedy answers to the same single-turn
chats, in turns, each beginning with an empty prefix cache: `sglang-tetris bench`, SGLang's
`bench_serving` and GuideLLM (in an environment of its own: its dependencies are not ours).
Each reports output tokens/s by its own clock and count. The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import track

from sglang_tetris.bench.environment import environment
from sglang_tetris.bench.workload import Chat, load_chats
from sglang_tetris.cli.launch import running_server
from sglang_tetris.cli.machine import num_usable_cores
from sglang_tetris.models.demo_target import demo_target

Client = Callable[[str, Path, argparse.Namespace], tuple[float, int]]


def main() -> None:
    """Measure all rounds and print the medians and the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", help="as --dataset of `sglang-tetris bench`")
    parser.add_argument("--limit", type=int, default=48, help="chats")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--guidellm", metavar="FILE", help="its executable; else it is left out")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="flags of `serve`")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # with the server

    clients: dict[str, Client] = {"ours": ours, "bench_serving": bench_serving}
    if args.guidellm:
        clients["guidellm"] = guidellm
    seen: dict[str, list[tuple[float, int]]] = {name: [] for name in clients}
    with tempfile.TemporaryDirectory() as directory:
        write_workloads(Path(directory), load_chats(args.dataset, limit=args.limit, max_turns=1))
        flags = ["--log-level", "warning", "--sleep-on-idle", *args.serve]
        with running_server(flags, timeout_s=600) as server:
            for client in clients.values():  # warm-up, of the server and of file caches
                client(server.base_url, Path(directory), args)
            for number in track(range(args.rounds), console=Console(stderr=True)):
                names = list(clients)
                shift = number % len(names)
                for name in names[shift:] + names[:shift]:
                    flush(server.base_url)
                    seen[name].append(clients[name](server.base_url, Path(directory), args))
    print(json.dumps(record(args, seen)))


def record(args: argparse.Namespace, seen: dict[str, list[tuple[float, int]]]) -> dict[str, Any]:
    """Print a line for each client and return what is printed last."""
    medians = {name: statistics.median(rate for rate, _ in of) for name, of in seen.items()}
    for name, of in seen.items():
        tokens = sorted({num_tokens for _, num_tokens in of})
        print(
            f"{name}: {medians[name]:.1f} tokens/s, {medians[name] / medians['ours']:.3f} of ours; "
            f"output tokens {tokens}"
        )
    return {
        "environment": environment(
            threads=num_usable_cores(), device="cpu", dtype="bfloat16"
        ).model_dump(),
        "chats": args.limit,
        "concurrency": args.concurrency,
        "tokens": args.tokens,
        "tokens_per_s": {name: [rate for rate, _ in of] for name, of in seen.items()},
        "output_tokens": {name: [num for _, num in of] for name, of in seen.items()},
        "over_ours": {name: median / medians["ours"] for name, median in medians.items()},
    }


def write_workloads(directory: Path, chats: list[Chat]) -> None:
    """Write the same first turns in each client's format."""
    prompts = [chat.turns[0] for chat in chats]
    formats: dict[str, list[dict[str, Any]]] = {
        "ours": [{"id": str(n), "turns": [prompt]} for n, prompt in enumerate(prompts)],
        # It wants an answer too, whose length would count if none were fixed.
        "bench_serving": [
            {"conversations": [{"content": prompt}, {"content": "unused"}]} for prompt in prompts
        ],
        "guidellm": [{"prompt": prompt} for prompt in prompts],
    }
    for name, lines in formats.items():
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (directory / f"{name}.jsonl").write_text(text, encoding="utf-8")


def flush(base_url: str) -> None:
    """Empty the prefix cache once the server is idle."""
    httpx.post(f"{base_url}/flush_cache", params={"timeout": 60}, timeout=90).raise_for_status()


def ours(base_url: str, directory: Path, args: argparse.Namespace) -> tuple[float, int]:
    """Return what our own client reports: output tokens/s, output tokens."""
    output = run(
        *(sys.executable, "-m", "sglang_tetris.cli.main", "bench", "--arms", f"url:{base_url}"),
        *("--dataset", directory / "ours.jsonl", "--concurrency", args.concurrency),
        *("--max-tokens", args.tokens, "--repeats", 1, "--segments", 1, "--warmup", 0),
    )
    (arm,) = json.loads(output.splitlines()[-1])["arms"]
    return arm["output_tokens_per_s_median"], arm["num_output_tokens"]


def bench_serving(base_url: str, directory: Path, args: argparse.Namespace) -> tuple[float, int]:
    """Return what SGLang's client reports."""
    result = directory / "bench_serving.json"
    result.unlink(missing_ok=True)
    run(
        *(sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang-oai-chat"),
        *("--base-url", base_url, "--model", model(base_url), "--tokenizer", demo_target()),
        *("--dataset-name", "custom", "--dataset-path", directory / "bench_serving.jsonl"),
        *("--num-prompts", args.limit, "--max-concurrency", args.concurrency),
        *("--sharegpt-output-len", args.tokens, "--disable-ignore-eos", "--warmup-requests", 0),
        *("--extra-request-body", json.dumps({"stream_options": {"include_usage": True}})),
        *("--output-file", result, "--disable-tqdm"),
    )
    said = json.loads(result.read_text())
    return said["output_throughput"], said["total_output_tokens"]


def guidellm(base_url: str, directory: Path, args: argparse.Namespace) -> tuple[float, int]:
    """Return what GuideLLM reports."""
    result = directory / "guidellm.json"
    result.unlink(missing_ok=True)
    backend = {
        "kind": "openai_http",
        "target": base_url,
        "request_format": "/v1/chat/completions",
        "max_tokens": args.tokens,
        "extras": {"body": {"temperature": 0}},
    }
    run(
        *(args.guidellm, "run", "--backend", json.dumps(backend)),
        *("--profile", json.dumps({"kind": "concurrent", "streams": [args.concurrency]})),
        *("--constraint", f"kind=max_requests,count={args.limit}"),
        *("--data", f"kind=json_file,path={directory / 'guidellm.jsonl'}"),
        *("--tokenizer", f"kind=huggingface_auto,model={demo_target()}"),
        *("--output", f"kind=json,path={result}", "--disable-console-interactive"),
        extra_environ={"GUIDELLM__MAX_WORKER_PROCESSES": "1"},  # else ten, on the server's cores
    )
    (benchmark,) = json.loads(result.read_text())["benchmarks"]
    said = benchmark["metrics"]
    num_tokens = said["output_token_count"]["successful"]["total_sum"]
    return said["output_tokens_per_second"]["successful"]["mean"], round(num_tokens)


def model(base_url: str) -> str:
    """Return what the server calls its model."""
    models = httpx.get(f"{base_url}/v1/models", timeout=60).raise_for_status().json()
    return str(models["data"][0]["id"])


def run(*command: object, extra_environ: Mapping[str, str] | None = None) -> str:
    """Return what a command prints; show that and end if it fails."""
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, **(extra_environ or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
