"""The user's mistakes on the way to a server, each in one line and before anything starts."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from sglang_tetris.config import CONFIG_FILE, TetrisConfig
from sglang_tetris.errors import ConfigError, ModelError, TetrisError, UnsupportedError, UserError

_STDERR = 2
_PORTS = range(1, 65536)
_CONFIGS = ("config.json", "params.json")  # Hugging Face's and Mistral's


def refuse_unknown_names(argv: Sequence[str]) -> None:
    """Say which of our flags there are; SGLang's parser would accept abbreviations."""
    known = [flag("tetris_" + name) for name in (*TetrisConfig.model_fields, CONFIG_FILE)]
    for argument in argv:
        name = argument.partition("=")[0]
        if name.startswith("--tetris-") and name not in known:
            raise ConfigError(f"unknown flag {name}; known: {', '.join(sorted(known))}")


def check_port(host: str, port: int) -> None:
    """Raise unless a server can listen there now; SGLang finds out after loading the model."""
    if port not in _PORTS:
        raise ConfigError(f"--port {port}: must be between {_PORTS[0]} and {_PORTS[-1]}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"--host {host}: {error.strerror}") from None
    try:
        with socket.socket(family, kind, protocol) as probe:
            # As the server will: a port whose last connections are still closing is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ConfigError(
            f"--port {port} on --host {host}: {error.strerror}; choose another"
        ) from None


def check_model(name: str, path: str) -> None:
    """Raise if ``path`` is meant to be on this machine and holds no model."""
    if "://" in path:
        return
    if not os.path.lexists(path):
        if path.startswith(("/", ".", "~")) or path.count("/") > 1:
            raise ModelError(f"{flag(name)} {path}: there is no such directory")
        return  # a name on the Hugging Face hub
    if not Path(path).is_dir():
        return  # one file with everything in it
    config = next(
        (Path(path) / config for config in _CONFIGS if (Path(path) / config).exists()), None
    )
    if config is None:
        raise ModelError(f"{flag(name)} {path}: not a model directory, it has no {_CONFIGS[0]}")
    try:
        json.loads(config.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelError(f"{flag(name)} {path}: {config.name}: {error}") from None


def flag(name: str) -> str:
    """Return the flag of one of SGLang's fields."""
    return "--" + name.replace("_", "-")


@contextlib.contextmanager
def sglang_refuses() -> Iterator[None]:
    """Turn what SGLang raises about options into a user's error."""
    try:
        yield
    except (ValueError, AssertionError, OSError) as error:
        if not str(error):
            raise  # says nothing to a user: a traceback says more
        raise UnsupportedError(_first_line(error)) from None


@contextlib.contextmanager
def reading_model(path: str) -> Iterator[None]:
    """Say which model it is that cannot be read; SGLang's message often names no flag."""
    try:
        yield
    except OSError as error:
        raise ModelError(f"--model-path {path}: {_first_line(error)}") from None


@contextlib.contextmanager
def held_stderr(*, is_repeated: bool = False) -> Iterator[None]:
    """Hold back what is written to stderr, and drop it when a mistake is found.

    SGLang's parser leaves through ``SystemExit`` after hundreds of lines of usage; the last line
    of them is the mistake. What will be written again (``is_repeated``) is dropped in any case
    but that of a bug.
    """
    with tempfile.TemporaryFile() as held:
        try:
            with _stderr_into(held):
                yield
            if is_repeated:
                held.truncate(0)
        except (TetrisError, KeyboardInterrupt):
            held.truncate(0)
            raise
        except SystemExit as stop:
            if not stop.code:
                raise
            message = _last_line(held)
            held.truncate(0)
            raise UserError(message.rpartition("error: ")[2]) from None
        finally:
            held.seek(0)
            with open(_STDERR, "wb", closefd=False) as shown:
                shutil.copyfileobj(held, shown)


@contextlib.contextmanager
def _stderr_into(file: IO[bytes]) -> Iterator[None]:
    """Redirect the descriptor, so that log handlers made meanwhile outlive the redirection."""
    sys.stderr.flush()
    saved = os.dup(_STDERR)
    os.dup2(file.fileno(), _STDERR)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, _STDERR)
        os.close(saved)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _last_line(file: IO[bytes]) -> str:
    file.seek(0)
    lines = file.read().decode(errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "SGLang gave up on these flags")
