"""A real server for as long as a block runs: started, waited for, and always stopped.

The demo, the benchmark and the end-to-end tests start their servers here. This module knows no
flag but ``--port``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from sglang_tetris.errors import TetrisError, UserError

SERVE = (sys.executable, "-m", "sglang_tetris.cli.main", "serve")
_HOST = "127.0.0.1"
_TAIL_LINES = 20  # of the log, shown when a server fails
_POLL_S = 0.2
_HEALTH_TIMEOUT_S = 10.0  # SGLang answers once it has generated a token
_STOP_TIMEOUT_S = 15.0  # for requests to drain; then the process group is killed


class ServerError(TetrisError):
    """A server died or did not come up in time; the message names its log and ends with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server's process, which leads a process group of its own."""

    base_url: str  # without /v1
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid


@contextlib.contextmanager
def running_server(
    args: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    log: Path | None = None,
    command: Sequence[str] = SERVE,
    timeout_s: float = 180,
) -> Iterator[Server]:
    """Run ``command`` with ``args`` until the block ends; enter it once the server is healthy.

    A free port is taken unless ``args`` has ``--port``. ``environ`` is added to this process's
    environment. Output goes to ``log``, by default to a file that is kept only on failure.
    """
    with started_server(args, environ=environ, log=log, command=command) as server:
        wait_until_healthy(server, timeout_s=timeout_s)
        yield server


@contextlib.contextmanager
def started_server(
    args: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    log: Path | None = None,
    command: Sequence[str] = SERVE,
) -> Iterator[Server]:
    """Like ``running_server``, but enter the block at once, so that servers can start together."""
    port = given_port(args)
    if port is None:
        port = free_port()
        args = [*args, "--port", str(port)]
    path = log or _new_log()
    process = _start([*command, *args], os.environ | dict(environ or {}), path)
    server = Server(base_url=f"http://{_HOST}:{port}", log=path, process=process)
    try:
        yield server
        if process.poll() is not None:
            raise failure(server, f"ended by itself with exit code {process.returncode}")
    except UserError:
        if log is None:
            path.unlink()  # the error says all that is in it
        raise
    finally:
        _stop(process)
    if log is None:
        path.unlink()


def wait_until_healthy(server: Server, *, timeout_s: float = 180) -> None:
    """Return once the server answers; raise as soon as it is clear that it will not."""
    process = server.process
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise failure(server, f"ended with exit code {process.returncode} before it answered")
        with contextlib.suppress(httpx.TransportError):
            response = httpx.get(f"{server.base_url}/health", timeout=_HEALTH_TIMEOUT_S)
            if response.status_code == httpx.codes.OK:
                return
        time.sleep(_POLL_S)
    raise failure(server, f"did not answer within {timeout_s:.0f} s")


def failure(server: Server, what: str) -> TetrisError:
    """Return the error for a server that failed: its user's mistake, or what its log says."""
    lines = server.log.read_text(encoding="utf-8", errors="replace").splitlines()
    if len(lines) == 1 and lines[0].startswith("error: "):  # we are its user
        return UserError(lines[0].removeprefix("error: "))
    tail = "\n".join(lines[-_TAIL_LINES:])
    return ServerError(f"the server {what}; its log {server.log} ends with\n{tail}")


def free_port() -> int:
    """Return a port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def given_port(args: Sequence[str]) -> int | None:
    """Return the value of ``--port`` in ``args``, None if there is none that makes sense."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--port")
    port = parser.parse_known_args(args)[0].port
    return int(port) if port and port.isdecimal() else None


def _new_log() -> Path:
    descriptor, name = tempfile.mkstemp(prefix="sglang-tetris-", suffix=".log")
    os.close(descriptor)
    return Path(name)


def _start(
    command: Sequence[str], environ: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A group of its own: it is stopped as a whole, and not by a Ctrl-C meant for us.
            start_new_session=True,
        )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask the leader, which stops its children in order; then kill what is left of the group."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
