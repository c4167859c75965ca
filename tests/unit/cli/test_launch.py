"""Servers are stopped with all that they started, and their last words are passed on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from sglang_tetris.cli import launch
from sglang_tetris.cli.launch import Server, ServerError, failure, free_port, given_port
from sglang_tetris.errors import UserError

# A leader that ignores SIGTERM, as does its child: it prints the child's id once both do.
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(60)
"""


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is more than a name that nobody has asked for."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize(
    ("args", "port"),
    [
        ([], None),
        (["--port", "31000"], 31000),
        (["--x", "--port=31000"], 31000),
        (["--port", "1", "--port", "2"], 2),
        (["--port", "http"], None),
    ],
)
def test_a_given_port_is_found(args: list[str], port: int | None) -> None:
    assert given_port(args) == port


def test_a_free_port_can_be_bound() -> None:
    assert 1024 <= free_port() <= 65535


def finished(log: Path) -> Server:
    """Return a server that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return Server(base_url="http://127.0.0.1:1", log=log, process=process)


def test_a_failure_ends_with_the_log(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("".join(f"line {n}.\n" for n in range(100)))

    error = failure(finished(log), "ended")

    assert isinstance(error, ServerError)
    assert error.exit_code == 1
    assert str(error).startswith(f"the server ended; its log {log} ends with\nline 80.\n")
    assert str(error).endswith("line 99.")


def test_a_mistake_of_the_server_s_user_is_ours(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("error: --port 1: no\n")

    error = failure(finished(log), "ended")

    assert isinstance(error, UserError)
    assert str(error) == "--port 1: no"


def test_a_server_that_died_is_noticed_at_once(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("last words\n")

    with pytest.raises(ServerError, match="exit code 0 before it answered.*\nlast words"):
        launch.wait_until_healthy(finished(log))


def test_the_whole_group_is_gone_even_if_it_ignores_sigterm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "_STOP_TIMEOUT_S", 0.2)
    leader = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=True
    )
    assert leader.stdout is not None
    child = int(leader.stdout.readline())

    with leader:
        launch._stop(leader)

    assert leader.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 5
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(child)


def test_a_server_with_a_mistake_leaves_no_process_and_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    with (
        pytest.raises(UserError, match="unknown flag --tetris-x"),
        launch.running_server(["--tetris-x", "1"]),
    ):
        pytest.fail("it cannot have started")

    assert os.listdir(tmp_path) == []
