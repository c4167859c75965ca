"""A page as Chromium shows it: Qt's, which `pip install '.[browser]'` brings, without a screen.

Run as a program, it opens a page and writes a picture of all of it. It is a process of its own
because Qt wants the main thread, and a browser may crash.
"""

# mypy: allow-subclassing-any, disable-error-code="import-not-found"
# Qt is there after `scripts/test --slow` only.

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDTH = 1200  # of the window
_LIMIT_S = 60.0  # for each thing that is waited for
_STILL_S = 1.0  # unchanged for so long, a picture is done
_ENVIRON = {
    "QT_QPA_PLATFORM": "offscreen",
    "QT_QUICK_BACKEND": "software",
    "QTWEBENGINE_CHROMIUM_FLAGS": "--disable-gpu",
    "QTWEBENGINE_DISABLE_SANDBOX": "1",  # root has none, and only our own page is shown
}
_PAINTED = (
    "let painted = 0; const paint = () => { painted++; requestAnimationFrame(paint) }; paint()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What came of opening a page."""

    requests: list[str]  # all addresses it asked for, its own first; only files were let through
    console: list[str]  # errors and whatever else it said there
    found: Any  # by the script


def show(page: Path, picture: Path, script: str) -> Shown:
    """Open a page in a window as high as itself, and save the picture as PNG.

    ``script`` is an expression that is evaluated in it; coordinates are pixels of the picture.
    """
    result = subprocess.run(
        [sys.executable, __file__, str(page), str(picture), script],
        env=os.environ | _ENVIRON,
        capture_output=True,
        text=True,
        timeout=5 * _LIMIT_S,
    )
    if result.returncode != 0:  # as where a library of the system is missing
        raise RuntimeError(f"the browser failed ({result.returncode}):\n{result.stderr}")
    return Shown(**json.loads(result.stdout))


def _main(page_path: Path, picture_path: Path, script: str) -> None:
    from PySide6.QtCore import QUrl
    from PySide6.QtWebEngineCore import (
        QWebEnginePage,
        QWebEngineProfile,
        QWebEngineSettings,
        QWebEngineUrlRequestInfo,
        QWebEngineUrlRequestInterceptor,
    )
    from PySide6.QtWebEngineWidgets import QWebEngineView
    from PySide6.QtWidgets import QApplication

    requests: list[str] = []
    console: list[str] = []
    loaded: list[bool] = []

    class Requests(QWebEngineUrlRequestInterceptor):
        def interceptRequest(self, info: QWebEngineUrlRequestInfo) -> None:  # noqa: N802  Qt's
            requests.append(info.requestUrl().toString())
            info.block(not info.requestUrl().isLocalFile())

    class Page(QWebEnginePage):
        def javaScriptConsoleMessage(  # noqa: N802  Qt's
            self, level: object, message: str, line: int, source: str
        ) -> None:
            console.append(message)

    application = QApplication(["browser"])
    profile, interceptor = QWebEngineProfile(), Requests()
    profile.setUrlRequestInterceptor(interceptor)
    page, view = Page(profile), QWebEngineView()
    view.setPage(page)
    # Without it Chromium drops what a file asks of a network before anyone could count it.
    remote = QWebEngineSettings.WebAttribute.LocalContentCanAccessRemoteUrls
    page.settings().setAttribute(remote, True)

    def wait_until(holds: Callable[[], bool]) -> None:
        end_s = time.monotonic() + _LIMIT_S
        while not holds():
            if time.monotonic() > end_s:
                raise TimeoutError(f"{page_path}: not shown after {_LIMIT_S:g} s")
            application.processEvents()
            time.sleep(0.01)

    def evaluate(expression: str) -> Any:
        answers: list[str] = []
        page.runJavaScript(f"JSON.stringify({expression})", answers.append)
        wait_until(lambda: bool(answers))
        return json.loads(answers[0])

    view.resize(WIDTH, 800)
    view.show()
    page.loadFinished.connect(loaded.append)
    page.load(QUrl.fromLocalFile(page_path.resolve()))
    wait_until(lambda: bool(loaded))
    if not loaded[0]:
        raise RuntimeError(f"{page_path}: cannot be loaded")
    view.resize(WIDTH, evaluate("document.documentElement.scrollHeight"))
    page.runJavaScript(_PAINTED)
    wait_until(lambda: bool(evaluate(f"painted > 2 && innerHeight == {view.height()}")))
    picture, since_s = view.grab().toImage(), time.monotonic()
    while time.monotonic() < since_s + _STILL_S:
        application.processEvents()
        time.sleep(0.1)
        if (newer := view.grab().toImage()) != picture:
            picture, since_s = newer, time.monotonic()
    found = evaluate(script)
    if not picture.save(str(picture_path)):
        raise RuntimeError(f"{picture_path}: cannot be written")
    json.dump({"requests": requests, "console": console, "found": found}, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # Qt and Python would free the page and its profile in an order of chance


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
