"""The README's main command, small."""

from __future__ import annotations

import pytest

from sglang_tetris.cli.main import main
from tests.support.servers import Servers

pytestmark = [pytest.mark.sglang, pytest.mark.e2e, pytest.mark.timeout(300)]


def test_the_demo_agrees_and_shows_its_table(
    servers: Servers, capfd: pytest.CaptureFixture[str]
) -> None:
    servers.close()  # to have the memory back

    assert main(["demo", "--chats", "3", "--turns", "2", "--max-tokens", "32"]) == 0

    shown = " ".join(capfd.readouterr().out.split())
    assert "6 of 6" in shown
    for row in ("accept length", "rows per step", "cached prompt tokens", "tokens per second"):
        assert row in shown
