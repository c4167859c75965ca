"""The page needs nothing else, and what is plotted are the numbers of the JSON."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from sglang_tetris.bench.figures import Figure, Series, figures
from sglang_tetris.bench.load import Load
from sglang_tetris.bench.plots import draw, svg, write_plots
from sglang_tetris.bench.report import html
from sglang_tetris.bench.run import Findings
from sglang_tetris.errors import TetrisError
from tests.unit.bench.results import example, plan_of, result_of


class Page(HTMLParser):
    """Collects the data, the cells and the addresses of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.data: dict[str, Any] = {}
        self.cells: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self._open: tuple[str, dict[str, str | None]] = ("", {})
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open = (tag, dict(attrs))
        self.addresses += [
            value
            for name, value in attrs
            if value and name in ("src", "href", "xlink:href") and not value.startswith("#")
        ]

    def handle_endtag(self, tag: str) -> None:
        self._open = ("", {})

    def handle_data(self, data: str) -> None:
        tag, attributes = self._open
        if tag == "script":
            self.data[str(attributes["id"])] = json.loads(data)
        elif tag == "td":
            self.cells.append(data)


def lines_of(names: list[str], y: list[float], high: Sequence[float | None] = ()) -> Figure:
    """Return a figure in which all of these arms have the same points."""
    x = [float(index) for index in range(1, len(y) + 1)]
    low = [None if bound is None else 0.0 for bound in high]
    series = [
        Series(name=name, colour=index, x=x, y=y, low=low, high=list(high))
        for index, name in enumerate(names)
    ]
    return Figure(name="f", title="t", x_label="x", y_label="y", kind="lines", series=series)


def test_the_page_holds_the_result_and_needs_nothing_else() -> None:
    result = example()

    page = Page(html(result))

    assert page.data["result"] == json.loads(result.to_json())
    assert page.addresses == []
    assert "link" not in page.tags
    assert page.tags.count("svg") == len(figures(result))
    assert "b" not in page.tags  # a category is text, not markup


def test_the_plotted_numbers_are_those_of_the_json() -> None:
    page = Page(html(example()))
    arms = {(arm["arm"], arm["concurrency"]): arm for arm in page.data["result"]["arms"]}
    plotted = {
        (figure["name"], series["name"]): series
        for figure in page.data["figures"]
        for series in figure["series"]
    }

    for name in ("none", "lookup:fixed:4", "lookup:paper:2+2"):
        series, of_loads = plotted["throughput", name], [arms[name, 1], arms[name, 8]]
        assert series["x"] == [1, 8]
        assert series["y"] == [arm["output_tokens_per_s_median"] for arm in of_loads]
        assert series["low"] == [arm["output_tokens_per_s_low"] for arm in of_loads]
        assert series["high"] == [arm["output_tokens_per_s_high"] for arm in of_loads]
    for (name, concurrency), arm in arms.items():
        load = f"c{concurrency}"
        by_category = plotted[f"accept-length-{load}", name]
        pairs = zip(by_category["x"], by_category["y"], strict=True)
        assert dict(pairs) == arm["accept_length_by_category"]
        if name == "none":
            continue
        lens = plotted[f"verify-lens-{load}", name]
        assert lens["x"] == list(range(1, len(arm["verify_lens"])))
        assert lens["y"] == arm["verify_lens"][1:]
        for what in ("rows", "capacity"):
            series = plotted[f"{what}-{load}", name]
            assert series["x"] == [point["time_s"] for point in arm["over_time"]]
            assert series["y"] == [point[what] for point in arm["over_time"]]


def test_the_tables_show_the_numbers_of_the_json() -> None:
    result = example()

    cells = Page(html(result)).cells

    for arm in result.arms:
        assert f"{arm.output_tokens_per_s_median:.1f}" in cells
        assert arm.accept_length is None or f"{arm.accept_length:.3f}" in cells
    for ratio in result.ratios:
        assert f"{ratio.ratio:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" in cells


@pytest.mark.parametrize("figure", figures(example()), ids=lambda figure: figure.name)
def test_what_is_drawn_is_what_the_figure_says(figure: Figure) -> None:
    (axes,) = draw(figure).axes

    if figure.kind == "lines":
        for line, series in zip(axes.lines, figure.series, strict=True):
            assert list(line.get_xdata()) == series.x  # type: ignore[arg-type]
            assert list(line.get_ydata()) == series.y  # type: ignore[arg-type]
    else:
        for bars, series in zip(axes.containers, figure.series, strict=True):
            assert [bar.get_height() for bar in bars] == series.y
    ElementTree.fromstring(svg(figure))
    assert svg(figure) == svg(figure)


def test_names_are_text_and_no_formulas() -> None:
    names = ["$5 to $6", r"$\no_formula{$", "_private"]

    texts = "".join(ElementTree.fromstring(svg(lines_of(names, [1.0, 2.0]))).itertext())

    assert all(name in texts for name in names)


@pytest.mark.parametrize(
    "names",
    [["a", "b", "c", "d"], ["sglang:EAGLE3:num_steps=3,eagle_topk=4,num_draft_tokens=16"] * 8],
)
def test_the_legend_fits_under_the_axes(names: list[str]) -> None:
    canvas = draw(lines_of(names, [1.0, 2.0]))

    canvas.draw_without_rendering()

    (legend,), (axes,) = canvas.legends, canvas.axes
    box = legend.get_window_extent()
    assert canvas.bbox.x0 <= box.x0 < box.x1 <= canvas.bbox.x1
    assert canvas.bbox.y0 <= box.y0 < box.y1 <= axes.get_tightbbox().y0  # type: ignore[union-attr]
    assert axes.bbox.height > canvas.dpi * 2.5


def test_long_categories_end_under_their_bars() -> None:
    names = [f"category {index}" for index in range(10)]
    series = [Series(name="a", colour=0, x=names, y=[1.0] * 10)]
    figure = Figure(name="f", title="t", x_label="x", y_label="y", kind="bars", series=series)
    canvas = draw(figure)

    canvas.draw_without_rendering()

    (axes,) = canvas.axes
    for tick, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True):
        (x, _) = axes.transData.transform((tick, 0))
        box = label.get_window_extent()
        assert box.x0 < x - 30
        assert abs(box.x1 - x) < 10


def test_twenty_arms_have_twenty_colours() -> None:
    (axes,) = draw(lines_of([f"arm {index}" for index in range(20)], [1.0])).axes

    assert len({mpl.colors.to_hex(line.get_color()) for line in axes.lines}) == 20


@pytest.mark.parametrize(
    ("y", "high", "top"),
    [
        ([100.0, 101.0], [], 101),
        ([100.0, 101.0], [120.0, None], 120),
        ([100.0, 101.0], [5000.0, 120.0], 202),
        ([0.0, 0.0], [], 0.5),
    ],
)
def test_the_highest_point_is_inside_the_frame(
    y: list[float], high: list[float | None], top: float
) -> None:
    (axes,) = draw(lines_of(["a"], y, high)).axes

    bottom, end = axes.get_ylim()
    assert bottom == 0
    assert top * 1.04 < end < top * 2.1


def test_an_open_loop_has_a_plot_of_its_own() -> None:
    names = {figure.name for figure in figures(example([Load(rate=0.5), Load(rate=2.0)]))}

    assert {"throughput-open", "rows-r0.5", "rows-r2"} <= names
    assert "throughput" not in names


def test_a_result_without_numbers_still_has_a_page() -> None:
    failures = {"none": TetrisError("died\n<last words>")}
    result = result_of(plan_of("none"), Findings(failures=failures))

    page = Page(html(result))

    assert figures(result) == []
    assert "died\n<last words>" in "".join(page.cells)


def test_nothing_in_the_data_ends_its_element() -> None:
    failures = {"none": TetrisError("502 <!-- <script>")}  # a browser would read on to the end
    page = html(result_of(plan_of("none"), Findings(failures=failures)))

    assert "<!--" not in page
    assert Page(page).data["result"]["arms"][0]["failure"] == "502 <!-- <script>"


def test_the_command_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["sglang-tetris", "bench", "--server-args", "--a 1"])

    assert "sglang-tetris bench --server-args '--a 1'" in "".join(Page(html(example())).cells)


def test_plots_are_written_in_both_forms(tmp_path: Path) -> None:
    drawn = figures(example([Load(concurrency=1)]))

    write_plots(drawn, tmp_path)

    expected = {f"{figure.name}.{form}" for figure in drawn for form in ("png", "svg")}
    assert {path.name for path in tmp_path.iterdir()} == expected
