"""Changes the settings of a running server, from another process on its machine.

One request and one reply, each a msgpack map: ``{"token", "settings"}`` and ``{"error"}``, null
where the settings hold from the next step on. ``--tetris-control`` is the server's side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import zmq

from sglang_tetris.endpoints import check_endpoint
from sglang_tetris.errors import ConfigError, TetrisError


def switch(
    endpoint: str, token: str, settings: Mapping[str, Any], *, timeout_s: float = 5.0
) -> None:
    """Make ``settings`` hold from the server's next step on; raise ``TetrisError`` otherwise.

    They are those of ``config.SWITCHABLE``, and say all that is to hold.
    """
    try:
        check_endpoint(endpoint)  # the secret must not leave this machine
    except ValueError as error:
        raise ConfigError(f"{endpoint} {error}") from None
    message = msgspec.msgpack.encode({"token": token, "settings": dict(settings)})
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.linger = 0
        socket.connect(endpoint)
        socket.send(message)
        if not socket.poll(round(timeout_s * 1000)):
            raise TetrisError(f"{endpoint} did not answer within {timeout_s:g} s")
        reply = msgspec.msgpack.decode(socket.recv(), type=dict[str, str | None])
    if reply["error"] is not None:
        raise TetrisError(f"{endpoint} refused: {reply['error']}")
