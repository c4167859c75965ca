"""The part of a server's step log that belongs to one segment of a run."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from sglang_tetris.errors import TetrisError
from sglang_tetris.metrics import StepRecord

_POLL_S = 0.05
_QUIET_POLLS = 4  # without a new byte, then the last step has been written
_MAX_POLLS = 100
_DECODER = msgspec.json.Decoder(StepRecord)


class StepLog:
    """A file of ``--tetris-step-log`` that a running server appends to, read piece by piece."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def take(self, *, since_s: float) -> list[StepRecord]:
        """Return the steps since the last call that ended after ``since_s`` (``time.time``)."""
        self._wait_until_quiet()
        if not self._size():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        whole_lines = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole_lines)
        try:
            steps = [_DECODER.decode(line) for line in whole_lines.splitlines()]
        except msgspec.MsgspecError as error:
            raise TetrisError(f"{self._path}: not a step: {error}") from None
        return [step for step in steps if step.time_s >= since_s]

    def _wait_until_quiet(self) -> None:
        size, num_quiet = self._size(), 0
        for _ in range(_MAX_POLLS):
            if num_quiet == _QUIET_POLLS:
                return
            time.sleep(_POLL_S)
            num_quiet = num_quiet + 1 if self._size() == size else 0
            size = self._size()

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0
