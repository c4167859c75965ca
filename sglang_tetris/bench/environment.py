"""Where a result was taken: what a reader needs to judge its numbers or to take them again."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path

from sglang_tetris.bench.schema import Environment

_PACKAGES = ("sglang-tetris", "sglang", "torch", "numba", "transformers", "httpx", "uvloop")
_CPU_INFO = Path("/proc/cpuinfo")
_GIT_TIMEOUT_S = 10


def environment(*, threads: int, device: str | None, dtype: str | None) -> Environment:
    """Return this machine, this installation and this command line."""
    checkout = Path(__file__).parents[2]
    sha = _git(checkout, "rev-parse", "HEAD") if (checkout / ".git").exists() else None
    status = None if sha is None else _git(checkout, "status", "--porcelain")
    return Environment(
        argv=sys.argv,
        git_sha=sha,
        is_git_dirty=None if status is None else bool(status),
        packages={name: version for name in _PACKAGES if (version := _version(name))},
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=_cpu(),
        threads=threads,
        device=device,
        dtype=dtype,
    )


def _git(checkout: Path, *words: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(checkout), *words],
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):  # no git here, or not its checkout
        return None
    return result.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu() -> str:
    if _CPU_INFO.exists():
        for line in _CPU_INFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
