"""``sglang-tetris demo``: the same chats with two real servers, one of them with TETRIS.

Both serve the same model on this machine's CPU, where the text is promised to be the same token
for token. What is shown was measured, and the exit code says whether the promise was kept.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sglang_tetris.cli import demo_report
from sglang_tetris.cli.demo_chats import ChatRun, hold_chats, warm_up
from sglang_tetris.cli.demo_conversations import CONVERSATIONS
from sglang_tetris.cli.demo_report import Comparison
from sglang_tetris.cli.launch import Server, failure, started_server, wait_until_healthy
from sglang_tetris.cli.mistakes import flag
from sglang_tetris.cli.parser import OneLineParser
from sglang_tetris.cli.serve import NO_SPECULATION
from sglang_tetris.config import CONFIG_FILE, TetrisConfig, load
from sglang_tetris.errors import UserError
from sglang_tetris.metrics import StepTotals, read_step_log

_NUM_TURNS = 3
_SETTINGS = (*(name for name in TetrisConfig.model_fields if name != "step_log"), CONFIG_FILE)
_OURS = "tetris_"  # prefix of the settings among the options


def run(argv: list[str]) -> int:
    """Hold the chats with both servers, show the comparison, and return 0 if all answers agree."""
    options = _parser().parse_args(argv)
    given = {name: getattr(options, _OURS + name) for name in _SETTINGS if _OURS + name in options}
    load(given, os.environ)  # a mistake is found before servers are started
    signal.signal(signal.SIGTERM, _interrupt)  # ends like Ctrl-C, so that the servers are stopped

    directory = Path(tempfile.mkdtemp(prefix="sglang-tetris-demo-"))
    try:
        comparison = _compare(options, given, directory)
    except BaseException as error:
        if isinstance(error, (UserError, KeyboardInterrupt)):
            shutil.rmtree(directory)
        else:
            print(f"the logs of this run are in {directory}", file=sys.stderr)
        raise
    if _show(comparison):
        shutil.rmtree(directory)
        return 0
    print(f"the logs of this run are in {directory}", file=sys.stderr)
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="sglang-tetris demo",
        description="Hold several chats at once with two servers, with and without TETRIS.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--chats",
        type=int,
        choices=range(1, len(CONVERSATIONS) + 1),
        default=6,
        metavar="N",
        help=f"chats held at once, 1 to {len(CONVERSATIONS)} (default: %(default)s)",
    )
    parser.add_argument(
        "--turns",
        type=int,
        choices=range(1, _NUM_TURNS + 1),
        default=_NUM_TURNS,
        metavar="N",
        help=f"turns of each chat, 1 to {_NUM_TURNS} (default: %(default)s)",
    )
    parser.add_argument(
        "--max-tokens",
        type=_positive,
        default=96,
        metavar="N",
        help="tokens of each answer at most (default: %(default)s)",
    )
    parser.add_argument("--model-path", metavar="DIR", help="target model (default: a small one)")
    parser.add_argument("--speculative-draft-model-path", metavar="DIR", help="draft model")
    settings = parser.add_argument_group("settings of TETRIS", "see `sglang-tetris serve --help`")
    for name in _SETTINGS:
        settings.add_argument(flag(_OURS + name), default=argparse.SUPPRESS, metavar="VALUE")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number above 0")
    return int(text)


def _compare(options: argparse.Namespace, given: dict[str, str], directory: Path) -> Comparison:
    console = Console(stderr=True)
    step_log = directory / "steps.jsonl"
    common = ["--device", "cpu", "--enable-cache-report", "--model-path", _model(options)]
    tetris = [word for name, value in given.items() for word in (flag(_OURS + name), value)]
    tetris += ["--tetris-step-log", str(step_log)]
    if options.speculative_draft_model_path is not None:
        tetris += ["--speculative-draft-model-path", options.speculative_draft_model_path]

    console.print("starting two servers, without speculation and with TETRIS: about a minute")
    with (
        started_server([NO_SPECULATION, *common], log=directory / "plain.log") as plain_server,
        started_server([*tetris, *common], log=directory / "tetris.log") as tetris_server,
    ):
        with console.status("starting"):
            for server in (tetris_server, plain_server):
                wait_until_healthy(server)
                with _answers(server):
                    warm_up(server.base_url)
        num_warm_up_steps = len(read_step_log(step_log))
        # One after the other: together they would share the cores and both be slow.
        plain = _hold(plain_server, "without speculation", options, console)
        tetris_run = _hold(tetris_server, "with TETRIS", options, console)
    steps = StepTotals()
    for step in read_step_log(step_log)[num_warm_up_steps:]:
        steps.add(step)
    return Comparison(plain=plain, tetris=tetris_run, steps=steps)


def _model(options: argparse.Namespace) -> str:
    if options.model_path is not None:
        return str(options.model_path)
    from sglang_tetris.models.demo_target import demo_target  # late: it may be made for minutes

    return str(demo_target())


def _hold(server: Server, name: str, options: argparse.Namespace, console: Console) -> ChatRun:
    columns = (TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    is_shown = console.is_terminal
    with (
        _answers(server),
        Progress(*columns, console=console, transient=True, disable=not is_shown) as bar,
    ):
        task = bar.add_task(name, total=options.chats * options.turns)
        run = hold_chats(
            server.base_url,
            CONVERSATIONS[: options.chats],
            num_turns=options.turns,
            max_tokens=options.max_tokens,
            on_answer=lambda: bar.advance(task),
        )
    console.print(f"{name}: {len(run.answers)} answers in {run.seconds:.1f} s")
    return run


@contextlib.contextmanager
def _answers(server: Server) -> Iterator[None]:
    """Say which server failed, and how, where a request of the block does."""
    try:
        yield
    except httpx.HTTPError as error:
        raise failure(server, f"does not answer ({error!r})") from None


def _show(comparison: Comparison) -> bool:
    """Print the comparison; return whether all answers agree."""
    console = Console(highlight=False, markup=False)
    first = comparison.tetris.answers[0].title
    console.print(f"\none of the chats, {first}:")
    console.print(demo_report.transcript(comparison.tetris, first))
    console.print()
    console.print(demo_report.table(comparison))
    console.print(demo_report.reading(comparison))
    difference = demo_report.first_difference(comparison)
    if difference is not None:
        console.print(f"\nNOT EQUAL in {difference}")
    return difference is None


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt
