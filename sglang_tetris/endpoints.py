"""Addresses of sockets that cannot be reached from another machine."""

from __future__ import annotations

import re
import socket
from ipaddress import ip_address
from pathlib import Path

_ALLOWED = "use tcp://127.0.0.1:PORT or ipc:///ABSOLUTE/PATH"
_MOST_BYTES = 107  # of a Unix socket's path


def check_endpoint(endpoint: str) -> None:
    """Raise ``ValueError``, in one line, unless it names a socket on this machine only."""
    scheme, _, address = endpoint.partition("://")
    if scheme == "ipc":
        _check_path(Path(address))
    elif scheme == "tcp":
        _check_address(address)
    else:
        raise ValueError(f"is neither tcp:// nor ipc://; {_ALLOWED}")


def check_unused(endpoint: str) -> None:
    """Raise ``ValueError`` if something listens there already."""
    scheme, _, address = endpoint.partition("://")
    if scheme != "tcp":
        return  # binding takes a socket file over
    host, _, port = address.rpartition(":")
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(port)))
    except OSError as error:
        raise ValueError(f"cannot be bound: {error.strerror}; choose another") from None


def _check_path(path: Path) -> None:
    if not path.is_absolute():
        raise ValueError(f"is not an absolute path; {_ALLOWED}")
    if len(str(path).encode()) > _MOST_BYTES:
        raise ValueError(f"is longer than the {_MOST_BYTES} bytes that a socket's path may have")
    if not path.parent.is_dir():
        raise ValueError("cannot be created: no such directory")


def _check_address(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        is_loopback = ip_address(host).is_loopback
    except ValueError:
        raise ValueError(f"has no numeric address; {_ALLOWED}") from None
    if not is_loopback:
        raise ValueError(f"could be reached from other machines; {_ALLOWED}")
    if not re.fullmatch(r"\d{1,5}", port) or not 0 < int(port) < 65536:
        raise ValueError(f"has no port between 1 and 65535; {_ALLOWED}")
