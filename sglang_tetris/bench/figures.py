"""What is plotted of a result: series of its own numbers, before anything is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from sglang_tetris.bench.schema import ArmResult, BenchResult
from sglang_tetris.bench.tables import load_name


class Series(BaseModel):
    """One arm's points; ``low`` and ``high`` bound an interval around each where there is one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    colour: int  # the arm's place in the result, so that it looks the same in all plots
    x: list[float] | list[str]
    y: list[float]
    low: list[float | None] = []
    high: list[float | None] = []


class Figure(BaseModel):
    """One plot."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str  # of its files
    title: str
    x_label: str
    y_label: str
    kind: Literal["lines", "bars"]
    series: list[Series]


def figures(result: BenchResult) -> list[Figure]:
    """Return all plots of a result that has numbers for them."""
    names = list(dict.fromkeys(arm.arm for arm in result.arms))
    measured = [arm for arm in result.arms if arm.output_tokens_per_s]
    device = result.environment.device
    title = "output throughput" + (f" on {device.upper()}" if device else "")
    closed = [arm for arm in measured if arm.concurrency is not None]
    opened = [arm for arm in measured if arm.rate is not None]
    drawn = [
        _throughput("throughput", title, "chats at once", closed, names),
        _throughput("throughput-open", title, "chats per second", opened, names),
    ]
    for load in dict.fromkeys((arm.concurrency, arm.rate) for arm in measured):
        arms = [arm for arm in measured if (arm.concurrency, arm.rate) == load]
        drawn += _of_load(arms, load_name(*load), names)
    return [figure for figure in drawn if figure.series]


def _of_load(arms: Sequence[ArmResult], load: str, names: Sequence[str]) -> list[Figure]:
    """Return the plots of all arms under one load."""
    is_open = arms[0].concurrency is None
    chats = "chat" if load == "1" else "chats"
    where = f"{load} chats" if is_open else f"{load} {chats} at once"
    slug = f"r{load.removesuffix('/s')}" if is_open else f"c{load}"
    return [
        _categories(arms, where, slug, names),
        _verify_lens(arms, where, slug, names),
        _over_time("capacity", arms, where, slug, names),
        _over_time("rows", arms, where, slug, names),
    ]


def _categories(arms: Sequence[ArmResult], where: str, slug: str, names: Sequence[str]) -> Figure:
    return Figure(
        name=f"accept-length-{slug}",
        title=f"accept length by category, {where}",
        x_label="category",
        y_label="tokens per request and step",
        kind="bars",
        series=[
            Series(
                name=arm.arm,
                colour=names.index(arm.arm),
                x=list(arm.accept_length_by_category),
                y=list(arm.accept_length_by_category.values()),
            )
            for arm in arms
            if arm.accept_length_by_category
        ],
    )


def _verify_lens(arms: Sequence[ArmResult], where: str, slug: str, names: Sequence[str]) -> Figure:
    return Figure(
        name=f"verify-lens-{slug}",
        title=f"verify lengths, {where}",
        x_label="rows of a request in a step, root counted",
        y_label="requests times steps",
        kind="bars",
        series=[
            Series(
                name=arm.arm,
                colour=names.index(arm.arm),
                x=[float(length) for length in range(1, len(arm.verify_lens))],
                y=[float(count) for count in arm.verify_lens[1:]],
            )
            for arm in arms
            if len(arm.verify_lens) > 1
        ],
    )


def _over_time(
    what: str, arms: Sequence[ArmResult], where: str, slug: str, names: Sequence[str]
) -> Figure:
    return Figure(
        name=f"{what}-{slug}",
        title=f"{what} over time, first lap, {where}",
        x_label="seconds",
        y_label=f"{what} per step",
        kind="lines",
        series=[
            Series(
                name=arm.arm,
                colour=names.index(arm.arm),
                x=[point.time_s for point in arm.over_time],
                y=[getattr(point, what) for point in arm.over_time],
            )
            for arm in arms
            if arm.over_time
        ],
    )


def _throughput(
    name: str, title: str, x_label: str, arms: Sequence[ArmResult], names: Sequence[str]
) -> Figure:
    series = []
    for index, arm_name in enumerate(names):
        of_arm = sorted((arm for arm in arms if arm.arm == arm_name), key=_load)
        if not of_arm:
            continue
        series.append(
            Series(
                name=arm_name,
                colour=index,
                x=[_load(arm) for arm in of_arm],
                y=[arm.output_tokens_per_s_median or 0.0 for arm in of_arm],
                low=[arm.output_tokens_per_s_low for arm in of_arm],
                high=[arm.output_tokens_per_s_high for arm in of_arm],
            )
        )
    return Figure(
        name=name,
        title=f"{title}: median, 95% interval of the mean",
        x_label=x_label,
        y_label="output tokens/s",
        kind="lines",
        series=series,
    )


def _load(arm: ArmResult) -> float:
    load = arm.concurrency if arm.rate is None else arm.rate
    assert load is not None, f"{arm.arm} has neither a concurrency nor a rate"
    return float(load)
