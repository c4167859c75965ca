"""Where the counts of a step go."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from sglang_tetris.errors import ConfigError
from sglang_tetris.metrics import StepRecord


class StepLog:
    """Appends one JSON line per step; numbers only, never text."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise ConfigError(f"--tetris-step-log {path}: {error.strerror}") from None

    def write(self, step: StepRecord) -> None:
        """Append one step."""
        self._file.write(json.dumps(asdict(step)) + "\n")


class PhaseTimer:
    """Seconds of each phase of one step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
