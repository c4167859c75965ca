"""What the doctor checks of the plugin: that SGLang finds it, and what it registers."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.metadata import entry_points
from types import SimpleNamespace

from sglang_tetris import plugin
from sglang_tetris.config import TetrisConfig, flag_of
from sglang_tetris.engine import compat
from sglang_tetris.errors import TetrisError

_GROUP = "sglang.srt.plugins"
_REINSTALL = "reinstall sglang-tetris with pip"
_OLDEST_PYTHON = (3, 11)


class CheckError(TetrisError):
    """What is wrong and what to do about it."""


def check_python() -> str:
    """SGLang's own minimum."""
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _OLDEST_PYTHON:
        raise CheckError(f"{found} is too old; use Python {'.'.join(map(str, _OLDEST_PYTHON))}")
    return f"{found}, {sys.executable}"


def check_sglang() -> str:
    """The one version that the adapters are built for."""
    compat.check_version()
    return compat.SUPPORTED_VERSION


def check_entry_point() -> str:
    """SGLang finds plugins by their installed metadata only."""
    ours = [
        entry for entry in entry_points(group=_GROUP) if entry.value.startswith("sglang_tetris")
    ]
    if not ours:
        raise CheckError(f"no plugin of sglang-tetris in the group {_GROUP}; {_REINSTALL}")
    entry = ours[0]
    try:
        loaded = entry.load()
    except (ImportError, AttributeError) as error:
        raise CheckError(
            f"{entry.name} = {entry.value} does not load: {error}; {_REINSTALL}"
        ) from None
    if loaded is not plugin.register:
        raise CheckError(f"{entry.name} = {entry.value} is not plugin.register; {_REINSTALL}")
    allowed = os.environ.get("SGLANG_PLUGINS", "")
    if allowed and entry.name not in [name.strip() for name in allowed.split(",")]:
        raise CheckError(f"SGLANG_PLUGINS={allowed} leaves it out; unset it or add {entry.name}")
    return f"{entry.name} = {entry.value}"


def check_registration() -> str:
    """Register in this process, as SGLang does in each of its own, but let errors through."""
    from sglang.srt.plugins.hook_registry import HookRegistry  # late, as all of SGLang

    plugin.register()
    HookRegistry.apply_hooks()
    return "went through"


def check_algorithms() -> str:
    """They are there, and answer what SGLang's scheduler asks of every algorithm."""
    import torch
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from sglang_tetris.engine.algorithm import ALGORITHMS

    pool = SimpleNamespace(req_to_token=torch.zeros(2, 4, dtype=torch.int32))
    for name in ALGORITHMS:
        algorithm = SpeculativeAlgorithm.from_string(name)
        algorithm.create_future_map(torch.device("cpu"), pool)
        algorithm.carries_draft_hidden_states()
        algorithm.need_topk()
        algorithm.get_platform_worker_cls()
    return ", ".join(ALGORITHMS)


def check_hooks() -> str:
    """SGLang only logs a hook whose target is gone, or that it could not apply."""
    for target in compat.HOOKED:
        function = compat.resolve(target)
        if not hasattr(function, "__wrapped__"):
            raise CheckError(f"SGLang did not apply the hook on {target}; {_REINSTALL}")
    return f"{len(compat.HOOKED)} applied"


def check_flags() -> str:
    """They are on SGLang's own command line."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    usage = parser.format_usage()
    flags = [flag_of(name) for name in TetrisConfig.model_fields]
    if missing := [flag for flag in flags if flag not in usage]:
        raise CheckError(f"{', '.join(missing)} not on SGLang's command line; {_REINSTALL}")
    return ", ".join(flags)
