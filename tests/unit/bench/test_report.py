"""The page needs nothing else, and what is plotted are the numbers of the JSON."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sglang_tetris.bench.figures import Figure, figures
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


def test_plots_are_written_in_both_forms(tmp_path: Path) -> None:
    drawn = figures(example([Load(concurrency=1)]))

    write_plots(drawn, tmp_path)

    expected = {f"{figure.name}.{form}" for figure in drawn for form in ("png", "svg")}
    assert {path.name for path in tmp_path.iterdir()} == expected
