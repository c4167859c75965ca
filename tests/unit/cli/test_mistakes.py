"""What is checked before a server starts, and that it says one line."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path
from typing import NoReturn

import pytest

from sglang_tetris.cli.mistakes import (
    check_model,
    check_port,
    held_stderr,
    reading_model,
    refuse_unknown_names,
    sglang_refuses,
)
from sglang_tetris.errors import ConfigError, ModelError, UnsupportedError, UserError


def test_a_free_port_is_fine_and_a_busy_one_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port} .* in use; choose another"):
            check_port("127.0.0.1", port)

    check_port("127.0.0.1", port)


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_a_port_outside_the_range_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match=f"--port {port}: must be between 1 and 65535"):
        check_port("127.0.0.1", port)


def test_a_model_directory_a_single_file_and_other_places_are_fine(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.gguf").touch()

    check_model("model_path", str(tmp_path))
    check_model("model_path", str(tmp_path / "model.gguf"))
    check_model("model_path", "somebody/some-model")
    check_model("model_path", "s3://bucket/some/model")


@pytest.mark.parametrize("path", ["/nowhere", "./nowhere", "~/nowhere", "no/where/at-all"])
def test_a_missing_directory_is_refused(path: str) -> None:
    with pytest.raises(ModelError, match="--model-path .*: there is no such directory"):
        check_model("model_path", path)


def test_a_directory_without_a_readable_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--speculative-draft-model-path .* no config.json"):
        check_model("speculative_draft_model_path", str(tmp_path))

    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="config.json: Expecting"):
        check_model("model_path", str(tmp_path))


def test_our_names_are_known_and_values_are_not_names() -> None:
    refuse_unknown_names(["--tetris-capacity", "3", "--tetris-config-file=x", "--tp", "2"])

    with pytest.raises(ConfigError, match="unknown flag --tetris-x; known: --tetris-capacity"):
        refuse_unknown_names(["--tetris-x=3"])


def test_what_sglang_raises_about_options_is_the_user_s_first_line() -> None:
    with pytest.raises(UnsupportedError, match=r"^no$"), sglang_refuses():
        raise ValueError("no\nbecause")


def test_a_model_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ModelError, match=r"^--model-path a/b: no network$"), reading_model("a/b"):
        raise OSError("no network\nat all")


def test_what_says_nothing_to_a_user_stays_a_bug() -> None:
    with pytest.raises(AssertionError), sglang_refuses():
        raise AssertionError


def fail_loudly(written: bytes, error: BaseException) -> NoReturn:
    """Write to stderr as a library does, then raise."""
    os.write(2, written)
    raise error


def test_output_is_shown_once_all_is_well(capfd: pytest.CaptureFixture[str]) -> None:
    with held_stderr():
        os.write(2, b"from a library\n")
        assert capfd.readouterr().err == ""

    assert capfd.readouterr().err == "from a library\n"


def test_output_is_dropped_for_a_mistake(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError), held_stderr():
        fail_loudly(b"noise\n", ConfigError("a mistake"))

    assert capfd.readouterr().err == ""


def test_output_is_shown_for_a_bug(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), held_stderr(is_repeated=True):
        fail_loudly(b"a trace\n", KeyError())

    assert capfd.readouterr().err == "a trace\n"


def test_what_is_said_again_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    with held_stderr(is_repeated=True):
        os.write(2, b"noise\n")

    assert capfd.readouterr().err == ""


def test_the_last_line_before_leaving_is_the_mistake(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"^argument --x: not so$"), held_stderr():
        fail_loudly(b"usage: of x\nprogram: error: argument --x: not so\n\n", SystemExit(2))

    assert capfd.readouterr().err == ""


def test_leaving_without_an_error_is_left_alone() -> None:
    with pytest.raises(SystemExit, match="0"), held_stderr():
        raise SystemExit(0)


def test_a_log_handler_made_meanwhile_still_works(capfd: pytest.CaptureFixture[str]) -> None:
    with held_stderr(), open(2, "w", closefd=False) as stream:
        handler = logging.StreamHandler(stream)
    with open(2, "w", closefd=False) as handler.stream:
        handler.emit(logging.makeLogRecord({"msg": "later"}))

    assert capfd.readouterr().err == "later\n"
