"""How many threads are worth having."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from sglang_tetris.cli import machine


@pytest.mark.parametrize(
    ("quota", "num_cores"),
    [("100000 100000", 1), ("50000 100000", 1), ("150000 100000", 2), ("max 100000", 8)],
)
def test_a_container_s_quota_bounds_the_cores(
    quota: str, num_cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(quota + "\n")
    monkeypatch.setattr(machine, "_CGROUP_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 16)

    assert machine.num_usable_cores() == num_cores


def test_only_one_thread_for_each_physical_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_CGROUP_QUOTA", tmp_path / "missing")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 4)

    assert machine.num_usable_cores() == 4
