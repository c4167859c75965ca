"""The doctor finds what is broken on purpose (tests/contract/test_wheel.py has it find nothing)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import as_a_user, fake_distribution

GROUP = "[sglang.srt.plugins]\n"

pytestmark = pytest.mark.sglang


@pytest.mark.parametrize(
    ("entry_points", "finding"),
    [
        ("", "no plugin of sglang-tetris in the group sglang.srt.plugins"),
        (GROUP + "tetris = sglang_tetris.plugn:register", "does not load: No module named"),
        (GROUP + "tetris = sglang_tetris.plugin:start", "has no attribute 'start'"),
        (GROUP + "tetris = sglang_tetris.engine.compat:resolve", "is not plugin.register"),
    ],
)
def test_a_broken_entry_point_is_found(tmp_path: Path, entry_points: str, finding: str) -> None:
    broken = fake_distribution(tmp_path, "sglang-tetris", "0.1.0", entry_points)

    result = as_a_user("doctor", PYTHONPATH=str(broken))

    failure = result.stdout.splitlines()[-1]
    assert failure.startswith("FAIL entry point: ")
    assert finding in failure
    assert result.returncode == 1
    assert result.stderr == ""


def test_a_list_of_plugins_without_ours_is_found() -> None:
    result = as_a_user("doctor", SGLANG_PLUGINS="one,another")

    assert "SGLANG_PLUGINS=one,another leaves it out" in result.stdout.splitlines()[-1]
    assert result.returncode == 1


def test_another_sglang_is_found(tmp_path: Path) -> None:
    other = fake_distribution(tmp_path, "sglang", "0.5.31")

    result = as_a_user("doctor", PYTHONPATH=str(other))

    assert "FAIL sglang: sglang-tetris is built for SGLang 0.5.23" in result.stdout
    assert result.returncode == 1
