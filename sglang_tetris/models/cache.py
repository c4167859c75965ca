"""Directories that are made once: whole or not there, and checked before each use.

A directory is built beside its place, sealed with a manifest (size and SHA-256 of each file) and
renamed into place, so an interruption leaves nothing half-made where a reader looks. This module
does not know what is built.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from sglang_tetris.errors import ModelError

MANIFEST = "manifest.json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    """What a finished directory holds; an empty one stands for a directory that is not finished."""

    recipe: str
    sizes: dict[str, int]  # file name to bytes
    sha256: dict[str, str]  # file name to hexadecimal digest


def cache_dir() -> Path:
    """Return where this package keeps what it makes; it need not exist yet."""
    if own := os.environ.get("SGLANG_TETRIS_CACHE"):
        return Path(own).expanduser().absolute()
    # The XDG specification wants relative values ignored.
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "sglang-tetris"


def ensure(directory: Path, recipe: str, *, build: Callable[[Path], None]) -> Path:
    """Return ``directory``, letting ``build`` fill it if it is missing, damaged or outdated.

    ``recipe`` names the inputs and the version of ``build``: another recipe means a rebuild.
    """
    if _is_intact(directory, recipe):
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _lock(directory):
            if not _is_intact(directory, recipe):  # another process may have made it meanwhile
                _rebuild(directory, recipe, build=build)
    except OSError as error:
        raise ModelError(
            f"cannot make {directory}: {error.strerror or error}; "
            "set SGLANG_TETRIS_CACHE to a directory with room for it"
        ) from error
    return directory


def damaged_files(directory: Path) -> list[str]:
    """Return the files that are missing or differ from the manifest, reading every byte."""
    manifest = _read_manifest(directory)
    if not manifest.sha256:
        return [MANIFEST]
    return [
        name
        for name, digest in manifest.sha256.items()
        if not (directory / name).is_file() or sha256(directory / name) != digest
    ]


def sha256(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _rebuild(directory: Path, recipe: str, *, build: Callable[[Path], None]) -> None:
    partial = directory.with_name(f"{directory.name}.new.tmp")
    replaced = directory.with_name(f"{directory.name}.old.tmp")
    # Under the lock nobody else is building: what lies there is left from an interruption.
    for leftover in (partial, replaced):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir()
    build(partial)
    _seal(partial, recipe)
    if directory.exists():
        directory.rename(replaced)  # a directory cannot be renamed onto a filled one
    partial.rename(directory)
    shutil.rmtree(replaced, ignore_errors=True)


def _seal(directory: Path, recipe: str) -> None:
    files = sorted(directory.iterdir())
    manifest = _Manifest(
        recipe=recipe,
        sizes={path.name: path.stat().st_size for path in files},
        sha256={path.name: sha256(path) for path in files},
    )
    (directory / MANIFEST).write_text(json.dumps(asdict(manifest), indent=2) + "\n")


def _is_intact(directory: Path, recipe: str) -> bool:
    """Return whether recipe and sizes fit; hashing at each use would cost a second."""
    manifest = _read_manifest(directory)
    return manifest.recipe == recipe and all(
        (path := directory / name).is_file() and path.stat().st_size == size
        for name, size in manifest.sizes.items()
    )


def _read_manifest(directory: Path) -> _Manifest:
    try:
        return _Manifest(**json.loads((directory / MANIFEST).read_bytes()))
    except (OSError, ValueError, TypeError):  # not there, not JSON, not our fields
        return _Manifest(recipe="", sizes={}, sha256={})


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """Hold the lock of ``directory``; the kernel lets go of it however the process ends."""
    with directory.with_name(f"{directory.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.warning("waiting for another process that is making %s", directory)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
