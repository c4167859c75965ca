"""The command as a whole, on fake servers: what it prints, writes and returns."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from sglang_tetris.bench import steps
from sglang_tetris.bench.run import run
from sglang_tetris.bench.schema import BenchResult, read_result
from sglang_tetris.cli import bench
from sglang_tetris.cli.main import main
from tests.unit.bench.fake_server import Chunk, FakeLauncher, Script, serving

SMALL = (
    "--limit",
    "2",
    "--max-turns",
    "2",
    "--concurrency",
    "2",
    "--warmup",
    "0",
    "--segments",
    "1",
)
ARMS = ("--arms", "none,lookup:fixed:4,lookup:paper:2+2")


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeLauncher:
    """Let the command start fake servers, and clean up what it sets."""
    fake = FakeLauncher()
    monkeypatch.setattr(bench, "launch", fake)
    monkeypatch.setattr(bench, "switch", lambda *_: None)
    monkeypatch.setattr(steps, "_POLL_S", 0.001)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return fake


@pytest.fixture(autouse=True)
def _no_handler_stays() -> Any:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def model(tmp_path: Path) -> tuple[str, str]:
    """Make what looks like a model."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return ("--model-path", str(tmp_path / "model"))


def last_line(capsys: pytest.CaptureFixture[str]) -> BenchResult:
    """Return the result on the last line of stdout."""
    return BenchResult.model_validate_json(capsys.readouterr().out.splitlines()[-1])


def leftovers(tmp_path: Path) -> list[str]:
    """Return the directories of runs that are still there."""
    return [name for name in os.listdir(tmp_path) if name.startswith("sglang-tetris-bench-")]


def test_the_result_is_shown_written_and_the_last_line(
    launcher: FakeLauncher,
    model: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    files = ("--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html"))
    plots = ("--plots", str(tmp_path / "deep" / "plots"))

    assert main(["bench", *ARMS, *SMALL, *model, *files, *plots, "--server-args", "--x 1"]) == 0

    shown = capsys.readouterr()
    result = read_result(tmp_path / "r.json")
    assert shown.out.splitlines()[-1] == result.to_json()
    assert "lookup:paper:2+2" in shown.out
    assert "repeat 3 of 3, 2 at once: none:" in shown.err
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "deep" / "plots" / "throughput.png").stat().st_size > 0
    assert leftovers(tmp_path) == []
    assert launcher.alive == []
    assert all(server.args[-2:] == ["--x", "1"] for server in launcher.started[:1])


def test_totals_are_the_sums_of_what_the_servers_said(
    launcher: FakeLauncher, model: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *ARMS, *SMALL, *model, "--repeats", "2"]) == 0

    result = last_line(capsys)
    num_turns = 2 * 2 * 2  # repeats, chats, turns
    assert result.is_complete
    assert [arm.arm for arm in result.arms] == ARMS[1].split(",")
    for arm in result.arms:
        assert (arm.num_turns, arm.num_output_tokens) == (num_turns, 3 * num_turns)
        assert arm.cached_token_share == 0.4
        assert arm.accept_length == 1.5
        assert len(arm.output_tokens_per_s) == 2
    assert len(result.ratios) == 2 + 1
    assert sum(len(server.fake.requests) for server in launcher.started) == 3 * num_turns
    assert result.workload.model == "fake"
    assert result.environment.device == "cpu"


def test_running_servers_are_asked_and_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as ours, serving(Script(is_sglang=False)) as other:
        arms = f"url:{ours.base_url},url:{other.base_url}/v1"
        assert main(["bench", "--arms", arms, *SMALL, "--rate", "500", "--repeats", "2"]) == 0

    result = last_line(capsys)
    assert [(arm.concurrency, arm.rate) for arm in result.arms] == [(2, None), (None, 500.0)] * 2
    assert [arm.accept_length for arm in result.arms] == [1.5, 1.5, None, None]
    assert ours.num_flushes == 4
    assert "return_spec_tokens_details" not in other.requests[0]


def test_a_failed_arm_is_reported_and_is_no_success(
    launcher: FakeLauncher,
    model: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    launcher.unhealthy = ("NGRAM",)

    assert main(["bench", "--arms", "none,sglang:NGRAM", *SMALL, *model]) == 1

    shown = capsys.readouterr()
    result = BenchResult.model_validate_json(shown.out.splitlines()[-1])
    assert [arm.failure is None for arm in result.arms] == [True, False]
    assert "last words" in shown.out
    (directory,) = leftovers(tmp_path)
    assert directory in shown.err


@pytest.mark.parametrize("at_first", [signal.default_int_handler, signal.SIG_IGN])
def test_an_interruption_shows_what_is_finished(
    launcher: FakeLauncher,
    model: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    at_first: Any,  # background jobs begin with SIGINT ignored
) -> None:
    signal.signal(signal.SIGINT, at_first)
    launcher.script = Script(chunks=(Chunk("x", 1, 0.02),))

    def interrupted(plan: Any, fleet: Any, findings: Any, watcher: Any) -> None:
        ends = watcher.repeat_ends

        def end(segments: Any) -> None:
            ends(segments)
            signal.raise_signal(signal.SIGTERM)

        watcher.repeat_ends = end
        run(plan, fleet, findings, watcher)

    monkeypatch.setattr(bench, "measure", interrupted)

    assert main(["bench", *ARMS, *SMALL, *model]) == 130

    result = last_line(capsys)
    assert not result.is_complete
    assert [arm.repeats for arm in result.arms] == [[0]] * 3
    assert launcher.alive == []


def test_a_file_that_cannot_be_written_in_the_end_is_one_line_after_the_result(
    launcher: FakeLauncher, model: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *ARMS, *SMALL, *model, "--json", "/dev/full"]) == 2

    shown = capsys.readouterr()
    assert BenchResult.model_validate_json(shown.out.splitlines()[-1]).is_complete
    assert shown.err.splitlines()[-1] == (
        "error: --json /dev/full: cannot be written: No space left on device"
    )


def test_two_results_are_compared(
    launcher: FakeLauncher,
    model: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = [str(tmp_path / name) for name in ("a.json", "b.json", "c.json")]
    for path, limit in zip(paths, ("2", "2", "1"), strict=True):
        assert main(["bench", *ARMS, *SMALL, *model, "--json", path, "--limit", limit]) == 0
    capsys.readouterr()

    assert main(["bench", "compare", *paths[:2]]) == 0
    assert "lookup:fixed:4" in capsys.readouterr().out
    assert main(["bench", "compare", *paths[1:]]) == 2
    assert "cannot be compared: fingerprint is" in capsys.readouterr().err


def test_new_arms_need_no_code(
    launcher: FakeLauncher,
    model: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arms = [
        {"name": "long", "server": {"kind": "tetris", "args": ["--new-flag"]}},
        {"name": "short", "server": {"kind": "tetris", "args": ["--new-flag"]},
         "settings": {"draft_tokens": 2}},
    ]  # fmt: skip
    (tmp_path / "arms.json").write_text(json.dumps(arms))

    words = ("--arms-file", str(tmp_path / "arms.json"), *SMALL, *model, "--repeats", "1")
    assert main(["bench", *words]) == 0

    assert [arm.arm for arm in last_line(capsys).arms] == ["long", "short"]
    (server,) = launcher.started
    assert "--new-flag" in server.args
