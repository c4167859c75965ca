"""The options of ``sglang-tetris bench``."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from sglang_tetris.bench.arms import ALLOWED
from sglang_tetris.bench.workload import ARENA, EMBEDDED
from sglang_tetris.cli.parser import OneLineParser

_DEFAULT_ARMS = "none,lookup:fixed:4,lookup:paper:2+2"
_DEFAULT_CONCURRENCY = [1, 8]
_Number = TypeVar("_Number", int, float)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command itself."""
    options = _parser().parse_args(argv)
    if options.arms is None and options.arms_file is None:
        options.arms = _DEFAULT_ARMS
    if not options.concurrency and not options.rate:
        options.concurrency = _DEFAULT_CONCURRENCY
    return options


def parse_compare(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of ``bench compare``."""
    parser = OneLineParser(
        prog="sglang-tetris bench compare",
        description="Show the ratios of the second result over the first, arm by arm.",
    )
    parser.add_argument("before", type=Path, metavar="A", help="file of --json")
    parser.add_argument("after", type=Path, metavar="B", help="file of --json, same workload")
    return parser.parse_args(argv)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="sglang-tetris bench",
        description="Hold the same multi-turn chats with several servers, in turns, and compare. "
        "The last line on stdout is the result as JSON.",
        epilog="`sglang-tetris bench compare A.json B.json` compares two results.",
        allow_abbrev=False,
    )
    _add_arms(parser.add_argument_group("what is compared"))
    _add_workload(parser.add_argument_group("what is asked"))
    _add_load(parser.add_argument_group("how it is asked"))
    _add_output(parser.add_argument_group("what is written"))
    return parser


def _add_arms(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--arms",
        metavar="LIST",
        help=f"arms, separated by commas: {ALLOWED}. fixed: C draft tokens verified per step over "
        "the batch; paper: K times the running requests, K + EXTRA drafted for each "
        f"(default: {_DEFAULT_ARMS})",
    )
    group.add_argument(
        "--arms-file", type=Path, metavar="FILE", help="a JSON list of arms, before those of --arms"
    )
    group.add_argument("--model-path", metavar="DIR", help="target model (default: a small one)")
    group.add_argument("--draft-model-path", metavar="DIR", help="draft model of lm: and sglang:")
    group.add_argument(
        "--server-args",
        type=shlex.split,
        default=[],
        metavar="FLAGS",
        help="further flags of `sglang-tetris serve` for every server, as one word",
    )
    group.add_argument(
        "--servers-at-once",
        type=_whole_above_0,
        default=3,
        metavar="N",
        help="servers alive together, each with its own copy of the model (default: %(default)s)",
    )


def _add_workload(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--dataset",
        default=EMBEDDED,
        metavar="DATA",
        help=f"file of JSON Lines or ShareGPT's JSON, {ARENA}, or {EMBEDDED}: chats of our own "
        "(default: %(default)s)",
    )
    group.add_argument("--limit", type=_whole_above_0, metavar="N", help="the first N chats only")
    group.add_argument(
        "--max-turns", type=_whole_above_0, metavar="N", help="the first N turns of a chat only"
    )
    group.add_argument(
        "--max-tokens",
        type=_whole_above_0,
        default=128,
        metavar="N",
        help="tokens of an answer at most (default: %(default)s)",
    )
    group.add_argument(
        "--temperature",
        type=_at_least_0,
        default=0.0,
        metavar="T",
        help="of the sampling (default: %(default)s, greedy)",
    )
    group.add_argument(
        "--seed",
        type=_whole,
        default=0,
        metavar="N",
        help="of sampling, arrivals, pauses and the order of arms (default: %(default)s)",
    )
    group.add_argument("--system-prompt", metavar="TEXT", help="put before every chat")


def _add_load(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--concurrency",
        type=_list_of(_whole_above_0),
        default=[],
        metavar="LIST",
        help="closed loop: chats held at once (default: 1,8)",
    )
    group.add_argument(
        "--rate",
        type=_list_of(_above_0),
        default=[],
        metavar="LIST",
        help="open loop: chats that arrive per second, Poisson",
    )
    group.add_argument(
        "--think-time",
        type=_at_least_0,
        default=0.0,
        metavar="S",
        help="mean seconds between an answer and the next turn (default: %(default)s)",
    )
    group.add_argument(
        "--repeats",
        type=_whole_above_0,
        default=3,
        metavar="N",
        help="times that every arm is measured under every load (default: %(default)s)",
    )
    group.add_argument(
        "--segments",
        type=_whole_above_0,
        default=8,
        metavar="N",
        help="pieces of a repeat, between which the arms take turns: parts of the chats, and the "
        "same chats again where they are few (default: %(default)s)",
    )
    group.add_argument(
        "--enough-time",
        type=_at_least_0,
        default=40.0,
        metavar="S",
        help="seconds of a repeat after which an arm's chats are not held again for the sake of "
        "--segments (default: %(default)s)",
    )
    group.add_argument(
        "--warmup",
        type=_whole,
        default=2,
        metavar="N",
        help="chats held with an arm before it is measured (default: %(default)s)",
    )
    group.add_argument(
        "--timeout",
        type=_above_0,
        default=600.0,
        metavar="S",
        help="seconds without a token after which a turn has failed (default: %(default)s)",
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json", type=Path, metavar="FILE", help="the result")
    group.add_argument("--html", type=Path, metavar="FILE", help="a page with tables and plots")
    group.add_argument("--plots", type=Path, metavar="DIR", help="the plots as PNG and SVG")


def _list_of(number: Callable[[str], _Number]) -> Callable[[str], list[_Number]]:
    def numbers(text: str) -> list[_Number]:
        return list(dict.fromkeys(number(word.strip()) for word in text.split(",")))

    return numbers


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, 0 or more")
    return int(text)


def _whole_above_0(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number above 0")
    return int(text)


def _at_least_0(text: str) -> float:
    value = _real(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number, 0 or more")
    return value


def _above_0(text: str) -> float:
    value = _real(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number above 0")
    return value


def _real(text: str) -> float:
    """Return a number, or one that no range contains."""
    try:
        return float(text)
    except ValueError:
        return math.nan
