"""The server's side of ``sglang_tetris.control``: a thread that answers, whether or not steps run.

It never touches a step: it checks what is wanted and leaves it where the next step will look.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import zmq

from sglang_tetris.errors import ConfigError

_MOST_BYTES = 65536  # of a request; whoever sends more is disconnected

Switch = Callable[[Mapping[str, Any]], None]  # raises ConfigError for settings that cannot hold


class ControlServer:
    """Listens until it is closed; at the latest the process's end closes it."""

    def __init__(self, endpoint: str, token: str, switch: Switch) -> None:
        assert token, "an empty secret would let everyone in"
        self._token = token.encode()
        self._switch = switch
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.maxmsgsize = _MOST_BYTES
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._socket.close()
            self._context.term()
            raise ConfigError(f"--tetris-control {endpoint}: {error.strerror}") from None
        self._thread = threading.Thread(target=self._serve, name="tetris-control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._context.term()  # wakes the thread, which closes its socket
        self._thread.join()

    def _serve(self) -> None:
        with self._socket as socket:
            while True:
                try:
                    request = socket.recv()
                except zmq.ContextTerminated:
                    return
                socket.send(msgspec.msgpack.encode({"error": self._answer(request)}))

    def _answer(self, request: bytes) -> str | None:
        """Return what is wrong with a request, or None after the switch."""
        try:
            wanted = msgspec.msgpack.decode(request, type=_Request)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return "a request is a msgpack map of token and settings"
        if not hmac.compare_digest(wanted.token.encode(), self._token):
            return "wrong token"
        try:
            self._switch(wanted.settings)
        except ConfigError as error:
            return str(error)
        return None


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    token: str
    settings: dict[str, int | str | bool | float | None]
