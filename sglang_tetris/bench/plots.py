"""Draws figures as PNG and SVG."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from sglang_tetris.bench.figures import Figure, Series

_INCHES = (7.2, 4.0)
_BARS_WIDTH = 0.8  # of all bars over one tick
_MARKED_POINTS = 20  # a line of more has no markers
_LOG_FROM = 8.0  # ratio of the largest to the smallest load


def draw(figure: Figure) -> Canvas:
    """Return the plot of a figure."""
    canvas = Canvas(figsize=_INCHES, layout="constrained")
    axes = canvas.add_subplot()
    if figure.kind == "bars":
        _bars(axes, figure.series)
    else:
        _lines(axes, figure.series)
    axes.set_title(figure.title, fontsize="medium")
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.y_label)
    highest = max((y for one in figure.series for y in one.y), default=0.0)
    # Two repeats can have an interval that would leave nothing else to see.
    axes.set_ylim(0, min(axes.get_ylim()[1], 2 * highest) or 1)
    axes.grid(axis="y", alpha=0.3)
    canvas.legend(fontsize="small", frameon=False, loc="outside lower center", ncols=3)
    return canvas


def svg(figure: Figure) -> str:
    """Return the plot as an SVG element, to stand inside a page."""
    text = io.StringIO()
    # Text stays text; ids differ between the plots of a page, and a second run draws the same.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": figure.name}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        draw(figure).savefig(text, format="svg", metadata=nothing)
    whole = text.getvalue()
    return whole[whole.index("<svg") :]


def write_plots(figures: list[Figure], directory: Path) -> None:
    """Write every figure as a PNG and an SVG file."""
    for figure in figures:
        (directory / f"{figure.name}.svg").write_text(svg(figure), encoding="utf-8")
        draw(figure).savefig(directory / f"{figure.name}.png", dpi=150)


def _lines(axes: Axes, series: list[Series]) -> None:
    for one in series:
        colour = _colour(one)
        marker = "o" if len(one.x) <= _MARKED_POINTS else ""
        axes.plot(one.x, one.y, color=colour, marker=marker, label=one.name)
        for x, low, high in zip(map(float, one.x), one.low, one.high, strict=False):
            if low is not None and high is not None:
                axes.vlines(x, low, high, color=colour, alpha=0.6)
    loads = [x for one in series if one.low for x in map(float, one.x)]
    if loads and max(loads) / min(loads) >= _LOG_FROM:
        axes.set_xscale("log", base=2)
    if loads:
        axes.set_xticks(sorted(set(loads)), [f"{load:g}" for load in sorted(set(loads))])


def _bars(axes: Axes, series: list[Series]) -> None:
    ticks = list(dict.fromkeys(x for one in series for x in one.x))
    if not any(isinstance(tick, str) for tick in ticks):
        ticks.sort(key=float)
    width = _BARS_WIDTH / len(series)
    for index, one in enumerate(series):
        offset = (index - (len(series) - 1) / 2) * width
        places = [ticks.index(x) + offset for x in one.x]
        axes.bar(places, one.y, width, label=one.name, color=_colour(one))
    names = [tick if isinstance(tick, str) else f"{tick:g}" for tick in ticks]
    is_long = sum(map(len, names)) > 60
    axes.set_xticks(range(len(ticks)), names, rotation=45 if is_long else 0)


def _colour(series: Series) -> str:
    return f"C{series.colour % 10}"
