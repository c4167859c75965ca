"""The page is seen whole in a browser, which needs nothing but the file."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pytest
from PIL import Image

from sglang_tetris.bench.figures import figures
from sglang_tetris.bench.report import html
from tests.support.browser import WIDTH, show
from tests.unit.bench.results import example

pytestmark = pytest.mark.slow  # the browser is 260 MB to fetch
SCRIPT = """{
    plots: [...document.querySelectorAll("figure svg")].map(plot => {
        const box = plot.getBoundingClientRect();
        return [box.left, box.top, box.right, box.bottom];
    }),
    unseen: [...document.querySelectorAll("h1, caption, th, td, svg text")].filter(
        text => text.textContent && text.getBoundingClientRect().width == 0
    ).length,
    cut: [...document.querySelectorAll("html, table")].filter(
        box => box.scrollWidth > box.clientWidth
    ).length,
    height: document.documentElement.scrollHeight,
}"""


@pytest.fixture(autouse=True)
def _browser() -> None:
    pytest.importorskip("PySide6", reason="needs the extra [browser]")


def test_the_page_is_shown_with_all_its_plots(tmp_path: Path) -> None:
    result = example()
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    page.write_text(html(result), encoding="utf-8")

    shown = show(page, picture, SCRIPT)

    print(f"the report as a browser shows it: {picture}")  # noqa: T201  to be looked at
    assert shown.requests == [page.as_uri()]
    assert shown.console == []
    assert shown.found["unseen"] == shown.found["cut"] == 0
    image = Image.open(picture).convert("RGB")
    assert image.size == (WIDTH, shown.found["height"])
    for box, figure in zip(shown.found["plots"], figures(result), strict=True):
        plot = image.crop(tuple(map(round, box)))
        assert plot.width > 500, figure.name
        assert plot.height > 300, figure.name
        colours = {colour for _, colour in plot.getcolors(plot.width * plot.height) or []}
        assert len(colours) > 50, figure.name  # text has shades
        for series in figure.series[-1:]:  # it may cover the others
            drawn = mpl.colors.to_rgb(f"C{series.colour}")
            assert tuple(round(255 * part) for part in drawn) in colours, figure.name


def test_a_page_that_needs_more_would_be_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text('<img src="http://127.0.0.1:9/a.png"><script>throw Error("bad")</script>')

    shown = show(page, tmp_path / "page.png", "document.images[0].naturalWidth")

    assert shown.requests == [page.as_uri(), "http://127.0.0.1:9/a.png"]
    assert "Uncaught Error: bad" in shown.console
    assert shown.found == 0
