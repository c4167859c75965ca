"""Settings: where they come from, which wins, and what is said of a wrong one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from sglang_tetris.config import (
    CONFIG_FILE,
    CONTROL_TOKEN,
    SWITCHABLE,
    TetrisConfig,
    load,
    switched,
)
from sglang_tetris.errors import ConfigError


def written(tmp_path: Path, content: object) -> str:
    """Return the path of a JSON file."""
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(content))
    return str(path)


def test_without_settings_there_are_the_defaults() -> None:
    assert load({}, {}) == TetrisConfig()


def test_a_flag_goes_before_the_file_and_the_file_before_the_environment(tmp_path: Path) -> None:
    file = written(tmp_path, {"capacity": 2, "draft_tokens": 6, "policy": "fixed"})
    environ = {
        "SGLANG_TETRIS_CAPACITY": "3",
        "SGLANG_TETRIS_DRAFT_TOKENS": "13",
        "SGLANG_TETRIS_SOURCES": "lookup",
    }

    config = load({"capacity": "1", CONFIG_FILE: file}, environ)

    assert (config.capacity, config.draft_tokens, config.sources) == (1, 6, "lookup")


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, {"policy": "fixed"})

    assert load({}, {"SGLANG_TETRIS_CONFIG_FILE": file}).policy == "fixed"


def test_the_file_of_the_flag_goes_before_that_of_the_environment(tmp_path: Path) -> None:
    file = written(tmp_path, {"policy": "fixed"})

    config = load({CONFIG_FILE: file}, {"SGLANG_TETRIS_CONFIG_FILE": "nowhere.json"})

    assert config.policy == "fixed"


def test_variables_of_others_and_our_other_ones_are_no_settings() -> None:
    environ = {"HOME": "/", "SGLANG_TETRIS_CACHE": "/cache", "SGLANG_PLUGINS": "tetris"}

    assert load({}, environ) == TetrisConfig()


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        TetrisConfig().capacity = 1


def test_a_step_log_may_be_new_where_its_directory_exists(tmp_path: Path) -> None:
    log = tmp_path / "steps.jsonl"

    assert load({"step_log": str(log)}, {}).step_log == log


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"capacity": "-1"}, "--tetris-capacity '-1': .* greater than or equal to 0"),
        ({"capacity": "1.5"}, "--tetris-capacity '1.5': .*valid integer"),
        ({"draft_tokens": "0"}, "--tetris-draft-tokens '0': .* greater than or equal to 1"),
        ({"draft_tokens": "65"}, "--tetris-draft-tokens '65': .* less than or equal to 7"),
        ({"policy": "all"}, "--tetris-policy 'all': .* 'per_request' or 'fixed'"),
        ({"sources": ""}, "--tetris-sources '': .* 'auto', 'lm' or 'lookup'"),
        ({"tokens_per_request": "5"}, "--tetris-tokens-per-request is 5, more than the 4"),
        ({"step_log": "/nowhere/at/all"}, "--tetris-step-log '/nowhere/at/all': cannot be written"),
        ({"trace": "/nowhere/at/all"}, "--tetris-trace '/nowhere/at/all': cannot be written"),
        ({"step_stream": "tcp://*:1"}, r"--tetris-step-stream 'tcp://\*:1': has no numeric"),
        ({"step_stream": "tcp://10.0.0.1:1"}, "--tetris-step-stream .*from other machines"),
        ({"control": "http://127.0.0.1:1"}, "--tetris-control .*neither tcp:// nor ipc://"),
        ({"control": "tcp://127.0.0.1:5555"}, f"--tetris-control .*: set {CONTROL_TOKEN}"),
        (
            {"control": "tcp://127.0.0.1:5555", "step_stream": "tcp://127.0.0.1:5555"},
            "--tetris-control and --tetris-step-stream are both tcp://127.0.0.1:5555",
        ),
    ],
)
def test_a_wrong_flag_is_named_with_what_is_allowed(flags: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load(flags, {})

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"SGLANG_TETRIS_WIDTH": "4"}, "unknown .* SGLANG_TETRIS_WIDTH; known: SGLANG_TETRIS_CAP"),
        ({"SGLANG_TETRIS_CAPACITY": "-1"}, "SGLANG_TETRIS_CAPACITY '-1': .* equal to 0"),
    ],
)
def test_a_wrong_variable_is_named(environ: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load({}, environ)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"width": 4}, "settings.json: unknown setting 'width'; known: capacity, control"),
        ({"config_file": "x"}, "unknown setting 'config_file'"),
        ({"capacity": -1}, "settings.json: capacity -1: .* equal to 0"),
        ([], "settings.json: must hold one JSON object"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, content: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load({CONFIG_FILE: written(tmp_path, content)}, {})


def test_a_missing_and_a_malformed_file_are_told_apart(tmp_path: Path) -> None:
    malformed = tmp_path / "malformed.json"
    malformed.write_text("{")

    with pytest.raises(ConfigError, match="missing.json: No such file"):
        load({CONFIG_FILE: str(tmp_path / "missing.json")}, {})
    with pytest.raises(ConfigError, match="malformed.json: not JSON"):
        load({CONFIG_FILE: str(malformed)}, {})


def test_a_setting_that_the_policy_does_not_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="--tetris-tokens-per-request is not read under"):
        load({"policy": "fixed", "tokens_per_request": "3"}, {})


@pytest.mark.parametrize("value", [True, 4.0])
def test_a_file_holds_whole_numbers_and_text(tmp_path: Path, value: object) -> None:
    with pytest.raises(ConfigError, match="whole numbers and text"):
        load({CONFIG_FILE: written(tmp_path, {"draft_tokens": value})}, {})


@pytest.mark.parametrize("token", [{}, {CONTROL_TOKEN: ""}])
def test_control_needs_a_secret(token: dict[str, str]) -> None:
    endpoint = {"control": "tcp://127.0.0.1:5555"}

    assert load(endpoint, {CONTROL_TOKEN: "secret"}).control == "tcp://127.0.0.1:5555"
    with pytest.raises(ConfigError, match=f"needs a secret .*{CONTROL_TOKEN}"):
        load(endpoint, token)


def test_a_switch_leaves_what_sizes_the_server() -> None:
    started = TetrisConfig(policy="fixed", capacity=3, draft_tokens=6, sources="lookup")

    later = switched(started, {"tokens_per_request": 1})

    assert (later.policy, later.tokens_per_request, later.draft_tokens) == ("per_request", 1, 6)
    kept = TetrisConfig.model_fields.keys() - set(SWITCHABLE)
    assert all(getattr(later, name) == getattr(started, name) for name in kept)
