"""The entry point: which command runs, and what becomes of its errors."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sglang_tetris
from sglang_tetris.cli import doctor, serve
from sglang_tetris.cli.main import main
from sglang_tetris.errors import ConfigError, TetrisError

HEAVY = ("torch", "sglang", "numpy", "numba", "transformers")


def loaded_by(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has after a statement."""
    code = f"{statement}; import sys; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in result.stdout.split()}


@pytest.mark.parametrize("module", ["main", "serve", "demo", "doctor", "launch"])
def test_nothing_heavy_is_imported_before_it_is_needed(module: str) -> None:
    loaded = loaded_by(f"import sglang_tetris.cli.{module}")

    assert loaded.isdisjoint(HEAVY)


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])

    assert capsys.readouterr().out == f"sglang-tetris {sglang_tetris.__version__}\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])

    out = capsys.readouterr().out
    assert all(f"\n  {command} " in out for command in ("serve", "demo", "doctor"))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "which command? one of serve, demo, bench, doctor"),
        (["sevre"], "invalid choice: 'sevre'"),
        (["--verbose"], "unrecognized arguments: --verbose"),
        (["demo", "--chats", "0"], "--chats: invalid choice: 0"),
        (["demo", "--max-tokens", "-3"], "--max-tokens: '-3': must be a whole number above 0"),
        (["demo", "--tetris-capacity", "-1"], "--tetris-capacity '-1'"),
        (["demo", "--tetris-width", "3"], "unrecognized arguments: --tetris-width 3"),
        (["doctor", "--fix"], "unrecognized arguments: --fix"),
    ],
)
def test_a_user_s_mistake_is_one_line_and_exit_code_2(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code = main(argv)

    captured = capsys.readouterr()
    assert exit_code == 2
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err


@pytest.mark.parametrize(
    ("error", "exit_code", "shown"),
    [
        (TetrisError("ours"), 1, "error: ours\n"),
        (ConfigError("yours"), 2, "error: yours\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_the_error_decides_the_exit_code(
    error: BaseException,
    exit_code: int,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_argv: list[str]) -> int:
        raise error

    monkeypatch.setattr(serve, "run", fail)

    assert main(["serve"]) == exit_code
    assert capsys.readouterr().err == shown


def test_a_bug_shows_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_argv: list[str]) -> int:
        raise KeyError("a bug")

    monkeypatch.setattr(serve, "run", fail)

    with pytest.raises(KeyError, match="a bug"):
        main(["serve"])


def test_a_command_gets_its_words_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    def take(argv: list[str]) -> int:
        given.extend(argv)
        return 7

    monkeypatch.setattr(serve, "run", take)

    assert main(["serve", "--help", "--version", "--x=1", "y"]) == 7
    assert given == ["--help", "--version", "--x=1", "y"]


def test_help_for_serve_names_what_it_adds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0

    out = capsys.readouterr().out
    assert "--no-speculation" in out
    assert "--tetris-capacity" in out


@pytest.mark.parametrize("command", ["demo", "doctor"])
def test_help_for_our_own_commands_ends_there(command: str) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])


def test_the_doctor_stops_at_the_first_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> str:
        raise OSError("no such thing")

    checks = [("one", lambda: "fine"), ("two", fail), ("three", lambda: "fine")]
    monkeypatch.setattr(doctor, "CHECKS", checks)
    monkeypatch.setattr(doctor, "use_cpu_engine", lambda: None)

    assert main(["doctor"]) == 1
    ok, failure = capsys.readouterr().out.splitlines()
    assert ok == "ok   one: fine"
    assert failure.startswith("FAIL two: OSError: no such thing; ")
