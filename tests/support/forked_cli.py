"""Many command lines for the price of one import: a process that has SGLang forks for each.

Run as a program, it reads ``[{"argv": [...], "environ": {...}}, ...]`` from stdin and writes one
``{"exit_code", "stdout", "stderr", "num_left"}`` for each to stdout. What a command line leaves
behind in its process dies with it; ``num_left`` counts the processes that do not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any

import psutil

from sglang_tetris.cli.machine import use_cpu_engine
from sglang_tetris.cli.main import main
from sglang_tetris.models.demo_target import demo_target

_LIMIT_S = 20  # one that gets past the checks starts a server, and is ended


def outcomes(rows: Sequence[dict[str, Any]], timeout_s: float) -> list[dict[str, Any]]:
    """Return what each command line did."""
    result = subprocess.run(
        [sys.executable, "-W", "ignore", __file__],
        input=json.dumps(rows),
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout_s,
        check=True,
    )
    answers: list[dict[str, Any]] = json.loads(result.stdout)
    return answers


def _import_engine() -> None:
    """Do what a good command line does before it starts anything, so that all is imported."""
    use_cpu_engine()
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.server_args import prepare_server_args

    words = ["--speculative-algorithm", "TETRIS", "--device", "cpu", "--log-level", "error"]
    server_args = prepare_server_args([*words, "--model-path", str(demo_target())])
    server_args.resolve_once()


def _outcome(row: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        pid = os.fork()
        if pid == 0:
            _run(row, stdout, stderr)
        _, status = os.waitpid(pid, 0)
        time.sleep(0.05)  # a child that is killed together with its parent needs a moment
        left = [process for process in psutil.process_iter() if _group(process) == pid]
        for process in left:
            process.kill()
        stdout.seek(0)
        stderr.seek(0)
        return {
            "exit_code": os.waitstatus_to_exitcode(status),
            "stdout": stdout.read(),
            "stderr": stderr.read(),
            "num_left": len(left),
        }


def _run(row: dict[str, Any], stdout: IO[str], stderr: IO[str]) -> None:
    os.setsid()
    os.dup2(stdout.fileno(), 1)
    os.dup2(stderr.fileno(), 2)
    signal.alarm(_LIMIT_S)
    os.environ.update(row["environ"])
    try:
        exit_code = main(row["argv"])
    except SystemExit as stop:
        exit_code = stop.code if isinstance(stop.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(exit_code)


def _group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


if __name__ == "__main__":
    _import_engine()
    json.dump([_outcome(row) for row in json.load(sys.stdin)], sys.stdout)
