"""Where the counts of a step can go besides SGLang's own metrics: a file and a socket."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import BinaryIO

import msgspec
import zmq

from sglang_tetris.config import TetrisConfig
from sglang_tetris.errors import ConfigError
from sglang_tetris.metrics import StepRecord, pack_step

logger = logging.getLogger(__name__)

_MOST_WAITING = 1000  # messages per subscriber; a slower one misses what follows


class Appender:
    """Appends to a file, at once; a disk that is full ends the file and not the server."""

    def __init__(self, flag: str, path: Path, *, mode: str = "ab") -> None:
        self._name = f"{flag} {path}"
        try:
            self._file: BinaryIO | None = path.open(mode, buffering=0)  # type: ignore[assignment]
        except OSError as error:
            raise ConfigError(f"{self._name}: {error.strerror}") from None

    def write(self, content: bytes) -> None:
        """Append ``content``, if everything before could be written."""
        if self._file is None:
            return
        try:
            self._file.write(content)
        except OSError as error:
            logger.error("%s: %s; it ends here", self._name, error.strerror)
            self.close()

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            self._file.close()
            self._file = None


class StepLog:
    """Appends one JSON line per step; numbers only, never text."""

    def __init__(self, path: Path) -> None:
        self._file = Appender("--tetris-step-log", path)

    def add(self, step: StepRecord) -> None:
        """Append one step."""
        self._file.write(msgspec.json.encode(step) + b"\n")

    def close(self) -> None:
        """Write no more."""
        self._file.close()


class StepStream:
    """Publishes every step to whoever listens, and never waits for anyone."""

    def __init__(self, endpoint: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.sndhwm = _MOST_WAITING
        self._socket.linger = 0
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(f"--tetris-step-stream {endpoint}: {error.strerror}") from None

    def add(self, step: StepRecord) -> None:
        """Publish one step. A PUB socket drops for a subscriber that lags: it never blocks."""
        self._socket.send(pack_step(step), zmq.NOBLOCK)

    def close(self) -> None:
        """Stop publishing."""
        self._socket.close()
        self._context.term()


def recorders_of(config: TetrisConfig) -> list[StepLog | StepStream]:
    """Return what the settings ask for."""
    recorders: list[StepLog | StepStream] = []
    if config.step_log is not None:
        recorders.append(StepLog(config.step_log))
    if config.step_stream is not None:
        recorders.append(StepStream(config.step_stream))
    return recorders
