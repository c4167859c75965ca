"""What pyproject.toml says is what the installed metadata says."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint, distribution
from pathlib import Path
from typing import Any

import pytest

import sglang_tetris

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
PROJECT: dict[str, Any] = tomllib.loads(PYPROJECT.read_text())["project"]
DECLARED = [
    EntryPoint(name, value, group)
    for group, names in [("console_scripts", PROJECT["scripts"]), *PROJECT["entry-points"].items()]
    for name, value in names.items()
]


def test_the_installed_entry_points_are_the_declared_ones() -> None:
    assert sorted(distribution("sglang-tetris").entry_points) == sorted(DECLARED)


@pytest.mark.parametrize("entry_point", DECLARED, ids=lambda entry_point: entry_point.name)
def test_the_entry_point_loads(entry_point: EntryPoint) -> None:
    assert callable(entry_point.load())


def test_there_is_one_version() -> None:
    installed = distribution("sglang-tetris").version

    assert installed == PROJECT["version"] == sglang_tetris.__version__


def test_the_engine_is_pinned_exactly() -> None:
    (engine,) = (text for text in PROJECT["dependencies"] if text.startswith("sglang"))

    assert engine.startswith("sglang==")
