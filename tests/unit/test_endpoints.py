"""Which addresses are of this machine only."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from sglang_tetris.endpoints import check_endpoint, check_unused


def test_loopback_and_socket_files_are_allowed(tmp_path: Path) -> None:
    for endpoint in ("tcp://127.0.0.1:5555", "tcp://127.8.9.1:65535", f"ipc://{tmp_path}/socket"):
        check_endpoint(endpoint)


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("tcp://0.0.0.0:5555", "could be reached from other machines; use tcp://127.0.0.1:PORT"),
        ("tcp://192.168.1.4:5555", "could be reached"),
        ("tcp://*:5555", "no numeric address"),
        ("tcp://localhost:5555", "no numeric address"),
        ("tcp://[::]:5555", "no numeric address"),
        ("tcp://127.0.0.1", "no numeric address"),
        ("tcp://127.0.0.1:0", "no port between 1 and 65535"),
        ("tcp://127.0.0.1:99999", "no port"),
        ("tcp://127.0.0.1:*", "no port"),
        ("ipc://relative", "not an absolute path"),
        ("ipc://@abstract", "not an absolute path"),
        ("ipc:///nowhere/at/all", "no such directory"),
        ("ipc:///tmp/" + "x" * 200, "longer than the 107 bytes"),
        ("inproc://here", "neither tcp:// nor ipc://"),
        ("pgm://eth0;239.192.1.1:5555", "neither"),
        ("5555", "neither"),
        ("", "neither"),
    ],
)
def test_all_else_is_refused_in_one_line(endpoint: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        check_endpoint(endpoint)

    assert "\n" not in str(caught.value)


def test_a_port_that_is_taken_is_said_to_be() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        endpoint = f"tcp://127.0.0.1:{busy.getsockname()[1]}"

        with pytest.raises(ValueError, match="in use; choose another"):
            check_unused(endpoint)

    check_unused(endpoint)
