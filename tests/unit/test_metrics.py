"""Counts of steps add up, and ratios are taken once, at the end."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from sglang_tetris.metrics import StepRecord, StepTotals, read_step_log

# Two requests: four of six candidates verified, three right. Then one request without drafts.
BUSY = StepRecord(
    num_requests=2,
    num_drafted=6,
    capacity=4,
    num_selected=4,
    num_correct_drafts=3,
    num_emitted=5,
    num_rows=6,
    seconds={"draft": 0.5},
)
IDLE = StepRecord(
    num_requests=1,
    num_drafted=0,
    capacity=2,
    num_selected=0,
    num_correct_drafts=0,
    num_emitted=1,
    num_rows=1,
)


def totals(*steps: StepRecord) -> StepTotals:
    """Return the sums of some steps."""
    result = StepTotals()
    for step in steps:
        result.add(step)
    return result


def test_totals_are_sums() -> None:
    assert totals(BUSY, IDLE) == StepTotals(
        num_steps=2,
        num_requests=3,
        num_drafted=6,
        capacity=6,
        num_selected=4,
        num_correct_drafts=3,
        num_emitted=6,
        num_rows=7,
    )


def test_ratios_weigh_steps_by_what_they_did() -> None:
    both = totals(BUSY, IDLE)

    assert both.accept_length == 6 / 3
    assert both.verify_accept_rate == 3 / 4
    assert both.draft_accept_rate == 3 / 6
    assert both.target_efficiency == 6 / 7
    assert both.rows_per_step == 7 / 2
    assert both.mean_capacity == 6 / 2


def test_the_order_of_steps_does_not_matter() -> None:
    assert totals(BUSY, IDLE, IDLE) == totals(IDLE, BUSY, IDLE)


@pytest.mark.parametrize(
    "ratio",
    [
        "accept_length",
        "verify_accept_rate",
        "draft_accept_rate",
        "target_efficiency",
        "rows_per_step",
        "mean_capacity",
    ],
)
def test_without_steps_every_ratio_is_zero(ratio: str) -> None:
    assert getattr(StepTotals(), ratio) == 0.0


def test_a_step_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    log = tmp_path / "steps.jsonl"
    log.write_text("".join(json.dumps(asdict(step)) + "\n" for step in (BUSY, IDLE)))

    assert read_step_log(log) == [BUSY, IDLE]
