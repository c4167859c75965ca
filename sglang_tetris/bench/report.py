"""A result as one HTML file that needs nothing else: tables, plots, and the numbers of both."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from html import escape

from sglang_tetris.bench.figures import Figure, figures
from sglang_tetris.bench.plots import svg
from sglang_tetris.bench.schema import BenchResult
from sglang_tetris.bench.tables import TextTable, tables

_STYLE = """\
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: right; }
td { white-space: pre; font-variant-numeric: tabular-nums; }
.text { text-align: left; white-space: pre-wrap; overflow-wrap: anywhere; min-width: 9rem; }
svg { max-width: 100%; height: auto; }
figure { margin: 1.5rem 0; }
"""


def html(result: BenchResult) -> str:
    """Return the page."""
    drawn = figures(result)
    heading = "sglang-tetris bench"
    parts = [
        f"<h1>{heading}</h1>",
        "" if result.is_complete else "<p><strong>The run was interrupted.</strong></p>",
        _table(_about(result)),
        *(_table(table) for table in tables(result)),
        *(_figure(figure) for figure in drawn),
        _data("result", json.loads(result.to_json())),
        _data("figures", [figure.model_dump() for figure in drawn]),
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f"<title>{heading}</title>\n<style>\n{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, parts))
        + "\n</body>\n</html>\n"
    )


def _about(result: BenchResult) -> TextTable:
    environment, workload, protocol = result.environment, result.workload, result.protocol
    dirty = " with changes" if environment.is_git_dirty else ""
    rows = (
        ("command", shlex.join(environment.argv)),
        ("commit", f"{environment.git_sha or '-'}{dirty}"),
        ("machine", f"{environment.cpu}, {environment.threads} threads, {environment.platform}"),
        ("versions", ", ".join(f"{name} {v}" for name, v in environment.packages.items())),
        ("model", f"{workload.model}, {environment.device or '-'}, {environment.dtype or '-'}"),
        ("chats", f"{workload.num_chats} of {workload.dataset}, {workload.num_turns} turns"),
        ("answers", f"{workload.max_tokens} tokens, temperature {workload.temperature:g}"),
        ("repeats", str(protocol.repeats)),
    )
    return TextTable(title="run", columns=("", ""), rows=rows, num_text_columns=2)


def _table(table: TextTable) -> str:
    head = _row("th", table.columns, table.num_text_columns)
    body = "\n".join(_row("td", row, table.num_text_columns) for row in table.rows)
    return (
        f"<table>\n<caption>{escape(table.title)}</caption>\n"
        f"<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    )


def _row(tag: str, cells: Sequence[str], num_text_columns: int) -> str:
    kinds = [' class="text"' if index < num_text_columns else "" for index in range(len(cells))]
    row = (f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in zip(cells, kinds, strict=True))
    return f"<tr>{''.join(row)}</tr>"


def _figure(figure: Figure) -> str:
    return f'<figure id="{escape(figure.name)}">\n{svg(figure)}</figure>'


def _data(name: str, content: object) -> str:
    text = json.dumps(content).replace("<", "\\u003c")  # a tag or comment could end the element
    return f'<script type="application/json" id="{name}">{text}</script>'
