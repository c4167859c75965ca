"""A result as tables for people: columns and rows of text, drawn by whoever shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang_tetris.bench.schema import ArmResult, BenchResult, Ratio

_NONE = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A title, a heading for each column, and cells."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    num_text_columns: int = 1  # from the left; the others are numbers


def tables(result: BenchResult) -> list[TextTable]:
    """Return all tables of a result: speed, speculation, ratios, and what failed if anything did."""
    shown = [_speed(result.arms), _speculation(result.arms)]
    if result.ratios:
        shown.append(_ratios(result.ratios))
    if failed := [arm for arm in result.arms if arm.failure or arm.error_messages]:
        shown.append(_failed(failed))
    return shown


def load_name(concurrency: int | None, rate: float | None) -> str:
    """Return how a load is called in tables and plots."""
    return str(concurrency) if rate is None else f"{rate:g}/s"


def interval_text(ratio: float, low: float | None, high: float | None) -> str:
    """Return a ratio with its interval if it has one."""
    if low is None or high is None:
        return f"{ratio:.3f}"
    return f"{ratio:.3f} [{low:.3f}, {high:.3f}]"


def _speed(arms: Sequence[ArmResult]) -> TextTable:
    return TextTable(
        title="speed: medians over repeats, latencies p50 / p90 / p99 in ms",
        columns=("arm", "chats", "tokens/s", "first token", "between tokens", "answer", "errors"),
        rows=tuple(
            (
                arm.arm,
                load_name(arm.concurrency, arm.rate),
                _number(arm.output_tokens_per_s_median, ".1f"),
                *(
                    " / ".join(_number(p and p * 1000, ".0f") for p in (of.p50, of.p90, of.p99))
                    for of in (arm.ttft_s, arm.itl_s, arm.e2e_s)
                ),
                str(arm.errors),
            )
            for arm in arms
        ),
    )


def _speculation(arms: Sequence[ArmResult]) -> TextTable:
    return TextTable(
        title="speculation: bonus tokens counted in lengths, roots in rows",
        columns=(
            "arm",
            "chats",
            "accept length",
            "outside loops",
            "verified right",
            "drafted right",
            "efficiency",
            "rows/step",
            "cached",
            "draft / select / verify / sample / commit / prefill s",
        ),
        rows=tuple(
            (
                arm.arm,
                load_name(arm.concurrency, arm.rate),
                _number(arm.accept_length, ".3f"),
                _number(arm.accept_length_outside_loops, ".3f"),
                _number(arm.verify_accept_rate, ".1%"),
                _number(arm.draft_accept_rate, ".1%"),
                _number(arm.target_efficiency, ".3f"),
                _number(arm.rows_per_step, ".1f"),
                _number(arm.cached_token_share, ".1%"),
                _phases(arm.phase_seconds),
            )
            for arm in arms
        ),
    )


def _ratios(ratios: Sequence[Ratio]) -> TextTable:
    return TextTable(
        title="output tokens/s over that of another arm, 95% intervals, paired piece by piece",
        columns=("arm", "over", "chats", "ratio"),
        num_text_columns=2,
        rows=tuple(
            (
                ratio.arm,
                ratio.baseline,
                load_name(ratio.concurrency, ratio.rate),
                interval_text(ratio.ratio, ratio.low, ratio.high),
            )
            for ratio in ratios
        ),
    )


def _failed(arms: Sequence[ArmResult]) -> TextTable:
    return TextTable(
        title="what went wrong",
        columns=("arm", "chats", "what"),
        num_text_columns=3,
        rows=tuple(
            (
                arm.arm,
                load_name(arm.concurrency, arm.rate),
                "\n".join([*([arm.failure] if arm.failure else []), *arm.error_messages]),
            )
            for arm in arms
        ),
    )


def _phases(seconds: dict[str, float]) -> str:
    names = ("draft", "select", "verify", "sample", "commit", "prefill")
    if not seconds:
        return _NONE
    return " / ".join(_number(seconds.get(name), ".1f") for name in names)


def _number(value: float | None, form: str) -> str:
    return _NONE if value is None else format(value, form)
