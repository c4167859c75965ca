"""From SGLang's command line to the settings of a run: our flags, the resolution of ``TETRIS``,
and the refusal of what does not go together with it, before anything is loaded."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any

from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

from sglang_tetris.config import CONFIG_FILE, TetrisConfig, flag_of, load
from sglang_tetris.engine.algorithm import ALGORITHMS, ALIAS, LM, LOOKUP
from sglang_tetris.engine.refusals import refuse_foreign_algorithm, refuse_model, refuse_options
from sglang_tetris.errors import ConfigError, UserError

_DEST = "tetris_"  # prefix of our flags in the parsed namespace
_CONFIG = "_tetris_config"  # rides on SGLang's record into every child process
_FROM_CLI = "_tetris_from_cli"
MAX_RUNNING_REQUESTS = 48  # SGLang's own default under speculation (speculative_hook.py)


def add_flags(_result: None, parser: argparse.ArgumentParser) -> None:
    """Add ``--tetris-*`` to SGLang's parser. Values stay text: ``config`` checks them."""
    group = parser.add_argument_group("TETRIS", "batch-wide selection of draft tokens")
    for name, field in TetrisConfig.model_fields.items():
        group.add_argument(
            flag_of(name),
            dest=_DEST + name,
            default=argparse.SUPPRESS,
            metavar=name.upper(),
            help=f"{field.description} (default: {field.default})".replace("%", "%%"),
        )
    group.add_argument(
        flag_of(CONFIG_FILE),
        dest=_DEST + CONFIG_FILE,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="a JSON object of these settings; flags go before it, the environment after",
    )


def keep_flags(server_args: Any, _cls: type, namespace: argparse.Namespace) -> None:
    """Check our flags and attach the settings to SGLang's record."""
    given = {
        name.removeprefix(_DEST): value
        for name, value in vars(namespace).items()
        if name.startswith(_DEST)
    }
    setattr(server_args, _FROM_CLI, True)
    is_ours = (server_args.speculative_algorithm or "").upper() in ALGORITHMS
    with _ExitOnUserError(from_cli=True):
        if given and not is_ours:
            raise ConfigError(
                f"{flag_of(min(given))} was given without --speculative-algorithm {ALIAS}"
            )
        if is_ours:  # another server does not read our environment
            setattr(server_args, _CONFIG, load(given, os.environ))


def settings(server_args: Any) -> TetrisConfig:
    """Return the settings of this server; an ``Engine`` without flags reads the environment."""
    config = getattr(server_args, _CONFIG, None)
    return config if config is not None else load({}, os.environ)


def refuse_unsupported(server_args: Any, previous: Callable[[Any], None]) -> None:
    """Run as SGLang's first resolution step: refuse options before anything acts on them."""
    view = resolving_view(server_args)
    with _ExitOnUserError(from_cli=getattr(server_args, _FROM_CLI, False)):
        if not _is_ours(server_args):
            refuse_foreign_algorithm(view)
        elif view.speculative_algorithm.upper() != ALIAS:
            raise ConfigError(
                f"--speculative-algorithm {view.speculative_algorithm} is what TETRIS calls "
                f"itself; give {ALIAS}, and --tetris-sources for the kind of draft"
            )
        else:
            refuse_options(view)
    previous(server_args)


def resolve(server_args: Any, previous: Callable[[Any], None]) -> None:
    """Turn ``TETRIS`` into the algorithm of its draft and set what SGLang derives sizes from.

    SGLang's own handler for a built-in algorithm does this for EAGLE and its kin
    (speculative_hook.py, ``_handle_eagle_family``); for a plugin's it does not run.
    """
    if _is_ours(server_args):
        view = resolving_view(server_args)
        with _ExitOnUserError(from_cli=getattr(server_args, _FROM_CLI, False)):
            config = settings(server_args)
            algorithm = _algorithm(config, view)
            refuse_model(server_args, algorithm)
        depth = config.draft_tokens
        declare_resolution(
            server_args,
            "tetris",
            speculative_algorithm=algorithm,
            speculative_num_steps=depth,
            speculative_eagle_topk=1,
            speculative_num_draft_tokens=depth + 1,  # the root counts
            max_running_requests=view.max_running_requests or MAX_RUNNING_REQUESTS,
        )
    previous(server_args)


def may_overlap(device: str) -> bool:
    """Whether scheduling may overlap the forward; tests bend this one to overlap on a CPU."""
    return device != "cpu"


def _algorithm(config: TetrisConfig, view: Any) -> str:
    has_draft = view.speculative_draft_model_path is not None
    if config.sources == "lm" and not has_draft:
        raise ConfigError(
            "--tetris-sources lm needs a draft: give --speculative-draft-model-path, "
            "or use --tetris-sources lookup"
        )
    if config.sources == "lookup" and has_draft:
        raise ConfigError(
            "--tetris-sources lookup drafts without a model: "
            "leave out --speculative-draft-model-path, or use --tetris-sources lm"
        )
    return LM if has_draft else LOOKUP


def _is_ours(server_args: Any) -> bool:
    algorithm = resolving_view(server_args).speculative_algorithm
    return algorithm is not None and algorithm.upper() in ALGORITHMS


class _ExitOnUserError:
    """On a command line, turns a user's mistake into one line and exit code 2.

    In a program (``sglang.Engine``) the exception goes through as it is.
    """

    def __init__(self, *, from_cli: bool) -> None:
        self._from_cli = from_cli

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if self._from_cli and isinstance(error, UserError):
            print(f"error: {error}", file=sys.stderr)  # noqa: T201 - this is the command line
            raise SystemExit(error.exit_code) from None
