"""Two results side by side: the same arms under the same loads, before and after a change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sglang_tetris.bench.intervals import unpaired_ratio
from sglang_tetris.bench.schema import ArmResult, BenchResult, ResultError, read_result
from sglang_tetris.bench.tables import TextTable, interval_text, load_name

_NONE = "-"


class Compared(NamedTuple):
    """One arm under one load in both results."""

    before: ArmResult
    after: ArmResult


def compare(before_path: Path, after_path: Path) -> TextTable:
    """Return the ratios of the second result over the first; raise ``ResultError`` if they did
    not ask the same."""
    before, after = read_result(before_path), read_result(after_path)
    _refuse_different_workloads(before, after)
    pairs = _pairs(before.arms, after.arms)
    if not pairs:
        raise ResultError(f"{after_path}: no arm and load in common with {before_path}")
    return TextTable(
        title=f"{after_path} over {before_path}: output tokens/s, 95% intervals of separate runs",
        columns=("arm", "chats", "before", "after", "ratio", "accept length"),
        rows=tuple(_row(pair) for pair in pairs),
    )


def _refuse_different_workloads(before: BenchResult, after: BenchResult) -> None:
    theirs = after.workload.model_dump()
    for name, ours in before.workload.model_dump().items():
        if ours != theirs[name]:
            raise ResultError(
                f"different workloads cannot be compared: {name} is {ours!r} and {theirs[name]!r}"
            )


def _pairs(before: Sequence[ArmResult], after: Sequence[ArmResult]) -> list[Compared]:
    found = {(arm.arm, arm.concurrency, arm.rate): arm for arm in after if arm.output_tokens_per_s}
    return [
        Compared(arm, found[key])
        for arm in before
        if arm.output_tokens_per_s and (key := (arm.arm, arm.concurrency, arm.rate)) in found
    ]


def _row(pair: Compared) -> tuple[str, ...]:
    before, after = pair
    interval = unpaired_ratio(after.output_tokens_per_s, before.output_tokens_per_s)
    lengths = [_NONE if arm.accept_length is None else f"{arm.accept_length:.3f}" for arm in pair]
    return (
        before.arm,
        load_name(before.concurrency, before.rate),
        f"{before.output_tokens_per_s_median:.1f}",
        f"{after.output_tokens_per_s_median:.1f}",
        interval_text(*interval),
        " -> ".join(lengths),
    )
