"""What this machine has: the device to serve on and the cores to compute with."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil

from sglang_tetris.cpu import finder

_CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # "max 100000" or "200000 100000"


def has_cuda() -> bool:
    """Whether a CUDA device can be used."""
    import torch  # late: it takes a second

    return torch.cuda.is_available()


def use_cpu_engine() -> None:
    """Make this process and its children SGLang's CPU engine; do it before SGLang is imported."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", str(num_usable_cores()))
    finder.install()


def num_usable_cores() -> int:
    """Return the physical cores that this process may keep busy.

    A second thread on a core only disturbs the first in matrix products, and more threads than
    a container's quota allows are stopped for most of the time.
    """
    allowed = len(os.sched_getaffinity(0))
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed, _quota(allowed)))


def _quota(allowed: int) -> int:
    try:
        quota, period = _CGROUP_QUOTA.read_text().split()
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError):  # no such file, or no limit
        return allowed
