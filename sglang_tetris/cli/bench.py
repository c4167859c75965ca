"""``sglang-tetris bench``: the same multi-turn chats with several servers, in turns, and what each
delivered. ``bench compare A B`` puts two results side by side.

This module reads the options, shows and writes; what is done is in ``sglang_tetris.bench``.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sglang_tetris.bench import environment, summary, tables, workload
from sglang_tetris.bench.arms import Arm, check_arms, parse_arms, read_arms
from sglang_tetris.bench.compare import compare
from sglang_tetris.bench.fleet import Fleet
from sglang_tetris.bench.load import Load, Manner
from sglang_tetris.bench.run import Findings, Plan
from sglang_tetris.bench.run import run as measure
from sglang_tetris.bench.schema import BenchResult, Protocol, Workload
from sglang_tetris.bench.tables import TextTable
from sglang_tetris.cli import launch
from sglang_tetris.cli.bench_options import parse, parse_compare
from sglang_tetris.cli.bench_progress import Progress
from sglang_tetris.cli.machine import num_usable_cores
from sglang_tetris.cli.mistakes import check_model
from sglang_tetris.control import switch
from sglang_tetris.errors import ConfigError, UserError

_COMMON_ARGS = ("--sleep-on-idle", "--enable-cache-report", "--log-level", "warning")
_INTERRUPTED = 130
_WIDTH = 150  # of the tables where no terminal says otherwise


class OutputError(UserError):
    """A result cannot be written where it was asked for."""


def run(argv: list[str]) -> int:
    """Measure, show and write; return 0 if every arm finished."""
    if argv[:1] == ["compare"]:
        paths = parse_compare(argv[1:])
        _print_tables([compare(paths.before, paths.after)])
        return 0
    options = parse(argv)
    plan = _plan(options)
    _check_outputs(options)
    model = _model(plan.arms, options)
    # A shell's background job begins with it ignored, and SIGTERM goes the same way.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))

    directory = Path(tempfile.mkdtemp(prefix="sglang-tetris-bench-"))
    findings = Findings()
    try:
        is_complete = _measure(plan, findings, [*model, *options.server_args], directory)
        if findings.segments or findings.failures:
            result = _result(plan, findings, options, is_complete=is_complete)
            _report(result, options)
    finally:
        if findings.failures:
            print(f"the servers' logs are in {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory)
    if not is_complete:
        return _INTERRUPTED
    return 1 if findings.failures else 0


def _plan(options: Namespace) -> Plan:
    arms: list[Arm] = [] if options.arms_file is None else read_arms(options.arms_file)
    if options.arms is not None:
        arms += parse_arms(options.arms, draft_model=options.draft_model_path)
    check_arms(arms)
    _refuse_unread(arms, options)
    chats = workload.load_chats(options.dataset, limit=options.limit, max_turns=options.max_turns)
    loads = [Load(concurrency=concurrency) for concurrency in options.concurrency]
    loads += [Load(rate=rate) for rate in options.rate]
    return Plan(
        arms=tuple(arms),
        chats=tuple(chats),
        loads=tuple(loads),
        manner=Manner(
            seed=options.seed,
            think_time_s=options.think_time,
            system_prompt=options.system_prompt,
        ),
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        timeout_s=options.timeout,
        repeats=options.repeats,
        segments=options.segments,
        enough_s=options.enough_time,
        num_warm_up_chats=options.warmup,
        servers_at_once=options.servers_at_once,
    )


def _refuse_unread(arms: list[Arm], options: Namespace) -> None:
    """Say which option would do nothing with these arms."""
    if all(arm.server.kind == "url" for arm in arms):
        for name, value in (
            ("model-path", options.model_path),
            ("server-args", options.server_args),
        ):
            if value:
                raise ConfigError(f"--{name}: no arm starts a server")
    draft = options.draft_model_path
    if draft is not None and not any(draft in arm.server.args for arm in arms):
        raise ConfigError("--draft-model-path: no arm drafts with a model")


def _model(arms: tuple[Arm, ...], options: Namespace) -> list[str]:
    """Return the flag that names the model of the servers to be started, if there are any."""
    if all(arm.server.kind == "url" for arm in arms):
        return []
    if options.draft_model_path is not None:
        check_model("draft_model_path", options.draft_model_path)
    if options.model_path is not None:
        check_model("model_path", options.model_path)
        return ["--model-path", options.model_path]
    from sglang_tetris.models.demo_target import demo_target  # late: it may be made for minutes

    return ["--model-path", str(demo_target())]


def _measure(plan: Plan, findings: Findings, args: list[str], directory: Path) -> bool:
    """Fill ``findings``; return False after an interruption."""
    fleet = Fleet(
        launch,
        plan.arms,
        common_args=[*_COMMON_ARGS, *args],
        directory=directory,
        at_most=plan.servers_at_once,
        switch=switch,
    )
    try:
        with fleet, Progress(plan) as progress:
            fleet.check_remotes()
            measure(plan, fleet, findings, progress)
    except KeyboardInterrupt:
        return False
    errors = list(findings.failures.values())
    if not findings.segments and all(isinstance(error, UserError) for error in errors):
        findings.failures.clear()  # nothing was measured, for a reason that one line says
        raise errors[0]
    return True


def _result(
    plan: Plan, findings: Findings, options: Namespace, *, is_complete: bool
) -> BenchResult:
    arms = summary.summarised(plan, findings)
    return BenchResult(
        is_complete=is_complete,
        environment=environment.environment(
            threads=num_usable_cores(), device=findings.device, dtype=findings.dtype
        ),
        workload=Workload(
            dataset=Path(options.dataset).name,
            fingerprint=workload.fingerprint(plan.chats),
            num_chats=len(plan.chats),
            num_turns=plan.num_turns,
            model=Path(findings.model or "").name,
            max_tokens=plan.max_tokens,
            temperature=plan.temperature,
            seed=plan.manner.seed,
            think_time_s=plan.manner.think_time_s,
            system_prompt=plan.manner.system_prompt,
        ),
        protocol=Protocol(
            concurrency=options.concurrency,
            rate=options.rate,
            repeats=plan.repeats,
            segments=plan.segments,
            enough_s=plan.enough_s,
            warmup=plan.num_warm_up_chats,
        ),
        arms=arms,
        ratios=summary.ratios(plan, arms),
    )


def _check_outputs(options: Namespace) -> None:
    """Raise if a file cannot be written: better before an hour of measuring than after it."""
    for name, path in (("json", options.json), ("html", options.html)):
        if path is not None:
            _written(name, path, lambda path: path.open("a").close())
    if options.plots is not None:
        _written("plots", options.plots, _check_directory)


def _check_directory(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path):
        pass


def _written(name: str, path: Path, write: Callable[[Path], object]) -> None:
    try:
        write(path)
    except OSError as error:
        raise OutputError(f"--{name} {path}: cannot be written: {error.strerror}") from None


def _report(result: BenchResult, options: Namespace) -> None:
    """Write the files, then show the tables and the JSON: those come even if a file cannot."""
    try:
        _write_files(result, options)
    finally:
        _print_tables(tables.tables(result))
        _print_line(result.to_json())


def _write_files(result: BenchResult, options: Namespace) -> None:
    text = result.to_json() + "\n"
    if options.json is not None:
        _written("json", options.json, lambda path: path.write_text(text, encoding="utf-8"))
    if options.html is None and options.plots is None:
        return
    from sglang_tetris.bench import plots, report  # late: matplotlib takes a second
    from sglang_tetris.bench.figures import figures

    if options.html is not None:
        page = report.html(result)
        _written("html", options.html, lambda path: path.write_text(page, encoding="utf-8"))
    if options.plots is not None:
        _written("plots", options.plots, lambda path: plots.write_plots(figures(result), path))


def _print_tables(shown: list[TextTable]) -> None:
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _WIDTH
    for text in shown:
        table = Table(*text.columns, title=text.title, title_justify="left")
        for column in table.columns[text.num_text_columns :]:
            column.justify = "right"
        for row in text.rows:
            table.add_row(*row)
        console.print(table)


def _print_line(line: str) -> None:
    """Print the last line; a full disk behind stdout is the user's to know."""
    try:
        print(line, flush=True)
    except OSError as error:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # or the exit fails on it once more
        raise OutputError(f"stdout: cannot be written: {error.strerror}") from None
