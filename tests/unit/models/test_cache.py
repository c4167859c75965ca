"""A cached directory is whole or not there, whatever happens while it is made."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from sglang_tetris.errors import ModelError
from sglang_tetris.models.cache import MANIFEST, cache_dir, damaged_files, ensure

SPAWN = multiprocessing.get_context("spawn")


def write_two_files(directory: Path) -> None:
    (directory / "config.json").write_text("{}")
    (directory / "weights").write_bytes(b"12345678")


def never(directory: Path) -> None:
    raise AssertionError(f"{directory} was built again")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return ensure(tmp_path / "model", "recipe", build=write_two_files)


def test_a_made_directory_is_not_made_again(made: Path) -> None:
    assert ensure(made, "recipe", build=never) == made
    assert sorted(path.name for path in made.iterdir()) == ["config.json", MANIFEST, "weights"]
    assert damaged_files(made) == []


@pytest.mark.parametrize("manifest", [None, "", "[]", "{}", '{"recipe": "recipe"}'])
def test_a_directory_without_a_good_manifest_is_made_again(
    made: Path, manifest: str | None
) -> None:
    (made / MANIFEST).unlink()
    if manifest is not None:
        (made / MANIFEST).write_text(manifest)

    assert damaged_files(made) == [MANIFEST]
    ensure(made, "recipe", build=write_two_files)

    assert damaged_files(made) == []


def test_a_truncated_or_missing_file_is_made_again(made: Path) -> None:
    (made / "weights").write_bytes(b"1234")
    (made / "config.json").unlink()

    assert damaged_files(made) == ["config.json", "weights"]
    ensure(made, "recipe", build=write_two_files)

    assert damaged_files(made) == []


def test_damage_that_keeps_the_size_is_seen_by_the_full_check_only(made: Path) -> None:
    (made / "weights").write_bytes(b"12345679")

    ensure(made, "recipe", build=never)

    assert damaged_files(made) == ["weights"]


def test_another_recipe_is_made_again(made: Path) -> None:
    def write_one_file(directory: Path) -> None:
        (directory / "config.json").write_text("[]")

    ensure(made, "another recipe", build=write_one_file)

    assert sorted(path.name for path in made.iterdir()) == ["config.json", MANIFEST]
    assert json.loads((made / MANIFEST).read_text())["recipe"] == "another recipe"


def test_an_interruption_leaves_nothing_half_made(tmp_path: Path) -> None:
    def interrupted(directory: Path) -> None:
        write_two_files(directory)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure(tmp_path / "model", "recipe", build=interrupted)

    assert not (tmp_path / "model").exists()
    ensure(tmp_path / "model", "recipe", build=write_two_files)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.lock"]


def test_a_failed_rebuild_keeps_what_was_there(made: Path) -> None:
    def failing(directory: Path) -> None:
        raise ModelError("no network")

    with pytest.raises(ModelError, match="no network"):
        ensure(made, "another recipe", build=failing)

    ensure(made, "recipe", build=never)


def test_a_killed_process_leaves_nothing_half_made_and_no_lock(tmp_path: Path) -> None:
    process = SPAWN.Process(target=ensure_slowly, args=(tmp_path,))
    process.start()
    wait_for(tmp_path / "builds")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()

    assert not (tmp_path / "model").exists()
    ensure(tmp_path / "model", "recipe", build=write_two_files)
    assert damaged_files(tmp_path / "model") == []


def test_two_processes_at_once_make_it_once(tmp_path: Path) -> None:
    processes = [SPAWN.Process(target=ensure_slowly, args=(tmp_path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0, 0]
    assert (tmp_path / "builds").read_text() == "x"
    assert damaged_files(tmp_path / "model") == []


def test_a_place_that_cannot_be_written_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ModelError, match=r"cannot make .*SGLANG_TETRIS_CACHE") as caught:
        ensure(tmp_path / "file" / "model", "recipe", build=write_two_files)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SGLANG_TETRIS_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}, "/own"),
        ({"SGLANG_TETRIS_CACHE": "~/own"}, "/home/me/own"),
        ({"SGLANG_TETRIS_CACHE": "", "XDG_CACHE_HOME": "/xdg"}, "/xdg/sglang-tetris"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/sglang-tetris"),
        ({}, "/home/me/.cache/sglang-tetris"),
    ],
)
def test_where_the_cache_is(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name in ("SGLANG_TETRIS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)

    assert cache_dir() == Path(expected)


def ensure_slowly(directory: Path) -> None:
    """Run in a child: note that a build began, then take a second over it."""

    def build(partial: Path) -> None:
        with (directory / "builds").open("a") as log:
            log.write("x")
        write_two_files(partial)
        time.sleep(1)

    ensure(directory / "model", "recipe", build=build)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.01)
