"""A step log is cut where a segment begins and ends, even while a line is being written."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from sglang_tetris.bench import steps
from sglang_tetris.bench.steps import StepLog
from sglang_tetris.errors import TetrisError
from sglang_tetris.metrics import StepRecord


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_POLL_S", 0.001)


def line(time_s: float) -> str:
    """Return one step as the server writes it."""
    return json.dumps(dataclasses.asdict(StepRecord(time_s=time_s, num_rows=3))) + "\n"


def test_only_the_segment_s_steps_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    log = StepLog(path)
    path.write_text(line(1.0) + line(2.0))
    with path.open("a") as file:
        file.write(line(2.5) + line(3.0) + line(4.0))

    assert [step.time_s for step in log.take(since_s=2.9)] == [3.0, 4.0]
    assert log.take(since_s=0.0) == []


def test_half_a_line_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    log = StepLog(path)
    path.write_text(line(1.0) + line(2.0)[:10])

    assert [step.time_s for step in log.take(since_s=0.0)] == [1.0]
    with path.open("a") as file:
        file.write(line(2.0)[10:])
    assert [step.time_s for step in log.take(since_s=0.0)] == [2.0]


def test_a_server_that_has_written_nothing_made_no_steps(tmp_path: Path) -> None:
    assert StepLog(tmp_path / "none").take(since_s=0.0) == []


def test_a_line_that_is_no_step_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("{\n")

    with pytest.raises(TetrisError, match="steps.jsonl: not a step"):
        StepLog(path).take(since_s=0.0)
