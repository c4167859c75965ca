"""``sglang-tetris doctor``: prove, one line per check, that everything is in place.

SGLang logs and swallows what goes wrong in a plugin; here it is done again without that net. The
checks come in the order in which things can break, and the first that fails ends the examination.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable

from sglang_tetris.cli import doctor_engine, doctor_plugin
from sglang_tetris.cli.machine import use_cpu_engine
from sglang_tetris.cli.parser import OneLineParser
from sglang_tetris.errors import TetrisError

# Each returns what it found, or raises; a finding says what to do.
CHECKS: tuple[tuple[str, Callable[[], str]], ...] = (
    ("python", doctor_plugin.check_python),
    ("sglang", doctor_plugin.check_sglang),
    ("entry point", doctor_plugin.check_entry_point),
    ("registration", doctor_plugin.check_registration),
    ("algorithms", doctor_plugin.check_algorithms),
    ("hooks", doctor_plugin.check_hooks),
    ("flags", doctor_plugin.check_flags),
    ("engine", doctor_engine.check_engine),
    ("spawned child", doctor_engine.check_child),
    ("operators", doctor_engine.check_operators),
    ("attention", doctor_engine.check_attention),
    ("matrix products", doctor_engine.check_products),
    ("sampler", doctor_engine.check_sampler),
    ("demo target", doctor_engine.check_demo_target),
)


def run(argv: list[str]) -> int:
    """Print one line per check; return 1 after the first that fails."""
    OneLineParser(
        prog="sglang-tetris doctor", description="Check this installation, one line per check."
    ).parse_args(argv)
    use_cpu_engine()  # this version serves on no other
    # SGLang warns at import of every kernel that this machine lacks; here that hides the checks.
    warnings.simplefilter("ignore")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    for what, check in CHECKS:
        try:
            found = check()
        except Exception as error:  # noqa: BLE001 - whatever is wrong is the finding
            print(f"FAIL {what}: {_one_line(error)}")
            return 1
        print(f"ok   {what}: {found}", flush=True)
    return 0


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, TetrisError):
        return text  # says itself what to do
    return f"{type(error).__name__}: {text}; reinstall sglang-tetris with pip, or report it"
