"""Counts of steps add up, and ratios are taken once, at the end."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from sglang_tetris.errors import UserError
from sglang_tetris.metrics import (
    StepRecord,
    StepTotals,
    histogram,
    pack_step,
    read_step_log,
    unpack_step,
)

# Two requests: four of six candidates verified, three right, one request in a loop.
BUSY = StepRecord(
    time_s=5.0,
    num_requests=2,
    num_drafted=6,
    capacity=4,
    num_selected=4,
    num_correct_drafts=3,
    num_emitted=5,
    num_rows=6,
    num_requests_outside_loops=1,
    num_emitted_outside_loops=4,
    verify_lens=[0, 0, 1, 0, 1],
    seconds={"draft": 0.5, "verify": 1.0},
)
# One request without drafts.
IDLE = StepRecord(
    time_s=6.0,
    num_requests=1,
    capacity=2,
    num_emitted=1,
    num_rows=1,
    num_requests_outside_loops=1,
    num_emitted_outside_loops=1,
    verify_lens=[0, 1],
    seconds={"verify": 0.25},
)
PREFILL = StepRecord(time_s=4.0, kind="prefill", num_prefill_tokens=30, seconds={"prefill": 2.0})
ALL = (PREFILL, BUSY, IDLE)
RATIOS = [
    "accept_length",
    "accept_length_outside_loops",
    "verify_accept_rate",
    "draft_accept_rate",
    "target_efficiency",
    "rows_per_step",
    "mean_capacity",
]


def totals(*steps: StepRecord) -> StepTotals:
    """Return the sums of some steps."""
    result = StepTotals()
    for step in steps:
        result.add(step)
    return result


def test_totals_are_sums() -> None:
    assert totals(*ALL) == StepTotals(
        num_steps=2,
        num_prefills=1,
        num_requests=3,
        num_drafted=6,
        capacity=6,
        num_selected=4,
        num_correct_drafts=3,
        num_emitted=6,
        num_rows=7,
        num_prefill_tokens=30,
        num_requests_outside_loops=2,
        num_emitted_outside_loops=5,
        verify_lens=[0, 1, 1, 0, 1],
        seconds={"prefill": 2.0, "draft": 0.5, "verify": 1.25},
    )


def test_ratios_weigh_steps_by_what_they_did() -> None:
    both = totals(BUSY, IDLE)

    assert both.accept_length == 6 / 3
    assert both.accept_length_outside_loops == 5 / 2
    assert both.verify_accept_rate == 3 / 4
    assert both.draft_accept_rate == 3 / 6
    assert both.target_efficiency == 6 / 7
    assert both.rows_per_step == 7 / 2
    assert both.mean_capacity == 6 / 2
    assert both.num_wasted_rows == both.num_rows - both.num_emitted == 1


@pytest.mark.parametrize("ratio", RATIOS)
def test_a_prefill_changes_no_ratio(ratio: str) -> None:
    assert getattr(totals(*ALL), ratio) == getattr(totals(BUSY, IDLE), ratio)


def test_the_order_of_steps_does_not_matter() -> None:
    assert totals(BUSY, IDLE, IDLE) == totals(IDLE, BUSY, IDLE)


def test_two_servers_add_up_as_one() -> None:
    one, other = totals(PREFILL, BUSY), totals(IDLE)

    assert one + other == other + one == totals(*ALL)
    assert one == totals(PREFILL, BUSY)  # and are left as they were


@pytest.mark.parametrize("ratio", RATIOS)
def test_without_steps_every_ratio_is_zero(ratio: str) -> None:
    assert getattr(StepTotals(), ratio) == 0.0


def test_a_histogram_counts_by_length() -> None:
    assert histogram([3, 1, 3]) == [0, 1, 0, 2]
    assert histogram([]) == []


def test_a_message_holds_the_step() -> None:
    assert [unpack_step(pack_step(step)) for step in ALL] == list(ALL)


def test_a_step_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    log = tmp_path / "steps.jsonl"
    log.write_text("".join(json.dumps(asdict(step)) + "\n" for step in ALL))

    assert read_step_log(log) == list(ALL)


def test_an_old_step_log_has_the_defaults_of_what_it_lacks(tmp_path: Path) -> None:
    log = tmp_path / "steps.jsonl"
    names = ("num_requests", "num_drafted", "capacity", "num_selected", "num_correct_drafts")
    old = {name: getattr(BUSY, name) for name in (*names, "num_emitted", "num_rows", "seconds")}
    log.write_text(json.dumps(old) + "\n")

    (step,) = read_step_log(log)

    assert step.kind == "decode"
    assert totals(step).accept_length == totals(BUSY).accept_length
    assert totals(step).accept_length_outside_loops == 0.0


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "steps.jsonl"
    line = json.dumps(asdict(BUSY))
    log.write_text(line + "\n" + line[:20])

    assert read_step_log(log) == [BUSY]


def test_a_line_that_is_no_step_is_named(tmp_path: Path) -> None:
    log = tmp_path / "steps.jsonl"
    log.write_text("{}\nGET /\n")

    with pytest.raises(UserError, match=r"steps\.jsonl, line 2: not a step"):
        read_step_log(log)
