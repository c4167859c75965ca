"""Draws figures as PNG and SVG."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.typing import ColorType

from sglang_tetris.bench.figures import Figure, Series

_WIDTH, _HEIGHT = 7.2, 4.0  # inches, with one row of the legend
_BARS_WIDTH = 0.8  # of all bars over one tick
_MARKED_POINTS = 20  # a line of more has no markers
_LOG_FROM = 8.0  # ratio of the largest to the smallest load
_HEADROOM = 1.05  # or the frame cuts the highest marker
_MOST_LEGEND_COLUMNS = 3
_LEGEND_LETTERS = 90  # that fit beside one another
_ENTRY_LETTERS = 8  # as wide as the sample before a name and the gap after it
_ROW_HEIGHT = 0.2  # inches
_TAB20 = mpl.color_sequences["tab20"]
_COLOURS = _TAB20[::2] + _TAB20[1::2]  # ten strong ones, then the same pale


@mpl.rc_context({"text.parse_math": False})  # a name with dollars is no formula
def draw(figure: Figure) -> Canvas:
    """Return the plot of a figure."""
    columns = _legend_columns([one.name for one in figure.series])
    height = _HEIGHT + _ROW_HEIGHT * ((len(figure.series) - 1) // columns)
    canvas = Canvas(figsize=(_WIDTH, height), layout="constrained")
    axes = canvas.add_subplot()
    handles = _bars(axes, figure.series) if figure.kind == "bars" else _lines(axes, figure.series)
    axes.set_title(figure.title, fontsize="medium")
    axes.set_xlabel(figure.x_label)
    axes.set_ylabel(figure.y_label)
    highest = max((y for one in figure.series for y in one.y), default=0.0)
    bounds = (high for one in figure.series for high in one.high if high is not None)
    # Two repeats can have an interval that would leave nothing else to see.
    shown = max(highest, min(max(bounds, default=0.0), 2 * highest))
    axes.set_ylim(0, _HEADROOM * shown or 1)
    axes.grid(axis="y", alpha=0.3)
    names = [one.name for one in figure.series]  # given, or one that begins with "_" is left out
    canvas.legend(
        handles, names, fontsize="small", frameon=False, loc="outside lower center", ncols=columns
    )
    return canvas


def svg(figure: Figure) -> str:
    """Return the plot as an SVG element, to stand inside a page."""
    text = io.StringIO()
    # Text stays text; what is referred to has different ids in the plots of a page, and the same
    # ones in a second run.
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


def _lines(axes: Axes, series: list[Series]) -> list[Artist]:
    handles: list[Artist] = []
    for one in series:
        colour = _colour(one)
        marker = "o" if len(one.x) <= _MARKED_POINTS else ""
        handles += axes.plot(one.x, one.y, color=colour, marker=marker)
        for x, low, high in zip(map(float, one.x), one.low, one.high, strict=False):
            if low is not None and high is not None:
                axes.vlines(x, low, high, color=colour, alpha=0.6)
    loads = [x for one in series if one.low for x in map(float, one.x)]
    if loads and max(loads) / min(loads) >= _LOG_FROM:
        axes.set_xscale("log", base=2)
    if loads:
        axes.set_xticks(sorted(set(loads)), [f"{load:g}" for load in sorted(set(loads))])
    return handles


def _bars(axes: Axes, series: list[Series]) -> list[Artist]:
    ticks = list(dict.fromkeys(x for one in series for x in one.x))
    if not any(isinstance(tick, str) for tick in ticks):
        ticks.sort(key=float)
    width = _BARS_WIDTH / len(series)
    handles: list[Artist] = []
    for index, one in enumerate(series):
        offset = (index - (len(series) - 1) / 2) * width
        places = [ticks.index(x) + offset for x in one.x]
        handles += axes.bar(places, one.y, width, color=_colour(one))[:1]
    names = [tick if isinstance(tick, str) else f"{tick:g}" for tick in ticks]
    is_long = sum(map(len, names)) > 60
    slanted: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(ticks)), names, **(slanted if is_long else {}))
    return handles


def _legend_columns(names: list[str]) -> int:
    longest = max(map(len, names), default=0)
    return max(1, min(_MOST_LEGEND_COLUMNS, _LEGEND_LETTERS // (longest + _ENTRY_LETTERS)))


def _colour(series: Series) -> ColorType:
    return _COLOURS[series.colour % len(_COLOURS)]
