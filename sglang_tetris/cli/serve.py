"""``sglang-tetris serve``: SGLang's own server, with TETRIS and the defaults of this machine.

All flags are SGLang's and those that the plugin adds to its parser. SGLang itself parses and
resolves them, with its output held back, so that a mistake is one line before anything starts.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from sglang_tetris.cli.machine import has_cuda, num_usable_cores, use_cpu_engine
from sglang_tetris.cli.mistakes import (
    check_model,
    check_port,
    flag,
    held_stderr,
    reading_model,
    refuse_unknown_names,
    sglang_refuses,
)
from sglang_tetris.config import CONFIG_FILE, TetrisConfig
from sglang_tetris.cpu import finder
from sglang_tetris.engine.compat import check_version
from sglang_tetris.errors import ConfigError, EngineMismatchError

NO_SPECULATION = "--no-speculation"
_HOST, _PORT = "127.0.0.1", 30000
_KV_TOKENS = 32768  # the demo target's are allocated in a second, and 48 requests fit in
_USAGE = f"""\
usage: sglang-tetris serve [MODEL] [{NO_SPECULATION}] [any flag of `sglang serve`]

Serve a model with SGLang and TETRIS. Flags that are left out get these values:

  --speculative-algorithm TETRIS, unless {NO_SPECULATION} is given: the same server without it
  --model-path: the demo target, a small chat model that is made on first use
  --host {_HOST} --port {_PORT}

and where there is no CUDA device, or with --device cpu:

  --device cpu --sleep-on-idle --max-total-tokens {_KV_TOKENS}
  SGLANG_USE_CPU_ENGINE=1 and OMP_NUM_THREADS={num_usable_cores()} in the environment

Settings of TETRIS:
"""


def run(argv: list[str]) -> int:
    """Check everything, then serve until the server is stopped."""
    if "-h" in argv or "--help" in argv:
        _print_help()
        return 0
    if argv and not argv[0].startswith("-"):
        argv = ["--model-path", *argv]  # `sglang serve MODEL` works as well
    with held_stderr(is_repeated=True):
        argv, has_model = _checked(argv)
    if not has_model:
        from sglang_tetris.models.demo_target import demo_target  # late: it may take minutes

        argv = [*argv, "--model-path", str(demo_target())]
    with held_stderr():
        server_args = _parse(argv)
        with sglang_refuses(), reading_model(server_args.model_path):
            server_args.resolve_once()
            server_args.check_server_args()
    return _launch(server_args)


def _launch(server_args: Any) -> int:
    from sglang.launch_server import run_server  # late, as all of SGLang: it takes seconds
    from sglang.srt.utils import kill_process_tree

    try:
        run_server(server_args)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
    return 0


def _checked(argv: list[str]) -> tuple[list[str], bool]:
    """Return the flags with our defaults and whether they name a model, after all checks that
    do not read it."""
    refuse_unknown_names(argv)
    check_version()
    _load_engine(argv)
    argv, given = _with_defaults(argv)
    check_port(given.get("host", _HOST), given.get("port", _PORT))
    for name in ("model_path", "speculative_draft_model_path"):
        if name in given:
            check_model(name, given[name])
    has_model = "model_path" in given
    _parse(argv if has_model else [*argv, "--model-path", "."])
    return argv, has_model


def _load_engine(argv: list[str]) -> None:
    """Import SGLang with its plugins: as its CPU engine where there is no CUDA device."""
    if _wants_cpu(argv):
        use_cpu_engine()

    from sglang.srt.plugins import load_plugins
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    load_plugins()  # logs and swallows what goes wrong in a plugin
    try:
        SpeculativeAlgorithm.from_string("TETRIS")
    except ValueError:
        raise EngineMismatchError(
            "SGLang did not load the plugin of sglang-tetris; `sglang-tetris doctor` says why"
        ) from None


def _wants_cpu(argv: list[str]) -> bool:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--device")
    device = parser.parse_known_args(argv)[0].device
    return device == "cpu" or (device is None and (finder.is_cpu_engine() or not has_cuda()))


def _with_defaults(argv: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Return the flags with our defaults before them, and what was given by SGLang's names."""
    wants_speculation = NO_SPECULATION not in argv
    argv = [argument for argument in argv if argument != NO_SPECULATION]
    given = _given(argv)
    if not wants_speculation and "speculative_algorithm" in given:
        raise ConfigError(f"{NO_SPECULATION} and --speculative-algorithm contradict each other")

    defaults: dict[str, Any] = {"host": _HOST, "port": _PORT}
    if wants_speculation:
        defaults["speculative_algorithm"] = "TETRIS"
    if finder.is_cpu_engine():
        defaults["device"] = "cpu"
        if "mem_fraction_static" not in given:
            defaults["max_total_tokens"] = _KV_TOKENS
        argv = ["--sleep-on-idle", *argv]
    missing = [(flag(name), str(value)) for name, value in defaults.items() if name not in given]
    return [word for pair in missing for word in pair] + argv, given


def _given(argv: list[str]) -> dict[str, Any]:
    """Return what the command line and its ``--config`` file say, without SGLang's defaults."""
    from sglang.srt.server_args import ServerArgs
    from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    with sglang_refuses():
        argv = ConfigArgumentMerger(parser).merge_config_with_args(argv)
    # SGLang requires a model path; argparse sets a default only where there is no value yet.
    any_model = ["--model-path", ""]
    untouched = dict.fromkeys(vars(parser.parse_args(any_model)))
    given = vars(parser.parse_args([*any_model, *argv], argparse.Namespace(**untouched)))
    return {name: value for name, value in given.items() if value not in (None, "")}


def _parse(argv: list[str]) -> Any:
    from sglang.srt.server_args import prepare_server_args

    with sglang_refuses():
        return prepare_server_args(argv)


def _print_help() -> None:
    print(_USAGE)
    for name, field in TetrisConfig.model_fields.items():
        print(f"  {flag('tetris_' + name)}: {field.description} (default: {field.default})")
    print(f"  {flag('tetris_' + CONFIG_FILE)}: a JSON file of these settings, without the prefix")
