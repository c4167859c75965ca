"""The entry point: pick the command, and turn errors into one line and an exit code.

Commands are imported when they are used: what they need takes seconds to import.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from sglang_tetris import __version__
from sglang_tetris.cli.parser import OneLineParser
from sglang_tetris.errors import TetrisError

_COMMANDS = {
    "serve": "serve a model with SGLang and TETRIS; takes every flag of `sglang serve`",
    "demo": "hold several chats at once, with and without TETRIS, and compare",
    "bench": "measure several servers with the same chats, in turns; `bench compare` two results",
    "doctor": "check this installation, one line per check",
}
_INTERRUPTED = 130  # what a shell reports after Ctrl-C


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a bug goes through as its traceback."""
    parser = _parser()
    try:
        options = parser.parse_args(argv)
        if options.command is None:
            parser.error(f"which command? one of {', '.join(_COMMANDS)}")
        command = importlib.import_module(f"sglang_tetris.cli.{options.command}")
        exit_code: int = command.run(options.arguments)
        return exit_code
    except TetrisError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, _COMMANDS)) + 2
    parser = OneLineParser(
        prog="sglang-tetris",
        usage="sglang-tetris COMMAND [options]",
        description="Batch-wide selection of draft tokens for speculative decoding in SGLang.",
        epilog="\n".join(
            ["commands:", *(f"  {name:<{width}}{what}" for name, what in _COMMANDS.items())]
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("command", nargs="?", choices=_COMMANDS, help=argparse.SUPPRESS)
    # Commands have parsers of their own: this one would take SGLang's flags for its options.
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
