"""A running server is told other settings, by who knows its secret and in one line if it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from sglang_tetris.config import TetrisConfig
from sglang_tetris.control import switch
from sglang_tetris.engine.control import ControlServer
from sglang_tetris.engine.policy import Policy, Steering
from sglang_tetris.errors import ConfigError, TetrisError

TOKEN = "a secret"
STARTED = TetrisConfig(policy="fixed", capacity=6, draft_tokens=5)


class Started:
    """A control server and what it steers."""

    def __init__(self, directory: Path) -> None:
        self.steering = Steering(STARTED)
        self.endpoint = f"ipc://{directory}/control"
        self.server = ControlServer(self.endpoint, TOKEN, self.steering.switch)

    def holds(self) -> tuple[int, int, int]:
        """Return the depth, and the capacity for one and for four requests."""
        policy = self.steering.policy
        return policy.depth, policy.capacity(1), policy.capacity(4)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    """Listen for as long as a test runs."""
    started = Started(tmp_path)
    yield started
    started.server.close()


def test_a_policy_is_what_the_settings_name() -> None:
    fixed = Policy.of(STARTED)
    per_request = Policy.of(TetrisConfig(tokens_per_request=3, draft_tokens=4))

    assert (fixed.depth, fixed.capacity(1), fixed.capacity(4)) == (5, 6, 6)
    assert (per_request.depth, per_request.capacity(1), per_request.capacity(4)) == (4, 3, 12)


@pytest.mark.parametrize(
    ("settings", "holds"),
    [
        ({"policy": "fixed", "capacity": 0}, (5, 0, 0)),
        ({"policy": "fixed", "capacity": 3, "draft_tokens": 2}, (2, 3, 3)),
        ({"policy": "per_request", "tokens_per_request": 1, "draft_tokens": 1}, (1, 1, 4)),
        ({"policy": "per_request"}, (5, 2, 8)),  # the default; not what was started
        ({}, (5, 2, 8)),
    ],
)
def test_a_switch_says_all_that_is_to_hold(
    started: Started, settings: dict[str, object], holds: tuple[int, int, int]
) -> None:
    switch(started.endpoint, TOKEN, settings)

    assert started.holds() == holds


def test_a_later_switch_may_go_back_to_the_depth_of_the_start(started: Started) -> None:
    switch(started.endpoint, TOKEN, {"draft_tokens": 2})
    switch(started.endpoint, TOKEN, {"draft_tokens": 5})

    assert started.holds()[0] == 5


@pytest.mark.parametrize(
    ("token", "settings", "said"),
    [
        ("another", {"capacity": 1}, "refused: wrong token"),
        ("", {}, "refused: wrong token"),
        (TOKEN, {"policy": "fixed", "capacity": -1}, "refused: capacity -1: .*equal to 0"),
        (TOKEN, {"policy": "fixed", "capacity": None}, "refused: capacity None: .*integer"),
        (TOKEN, {"policy": "fixed", "capacity": True}, "refused: capacity is True; .*numbers"),
        (TOKEN, {"policy": "best"}, "refused: policy 'best': .*'fixed'"),
        (TOKEN, {"draft_tokens": 6}, "draft_tokens is 6; .*started with --tetris-draft-tokens 5"),
        (TOKEN, {"draft_tokens": 0}, "draft_tokens 0: .*equal to 1"),
        (TOKEN, {"sources": "lm"}, "'sources' cannot be changed while serving; capacity, draft"),
        (TOKEN, {"step_log": "steps.jsonl"}, "'step_log' cannot be changed"),
        (TOKEN, {"capacity": 1}, "not read under"),
        (TOKEN, {"tokens_per_request": 3, "draft_tokens": 2}, "is 3, more than the 2"),
    ],
)
def test_a_refusal_is_one_line_and_changes_nothing(
    started: Started, token: str, settings: dict[str, object], said: str
) -> None:
    with pytest.raises(TetrisError, match=said) as caught:
        switch(started.endpoint, token, settings)

    assert "\n" not in str(caught.value)
    assert started.holds() == (5, 6, 6)


@pytest.mark.parametrize("message", [b"", b"\xc1", b"\x90", msgspec.msgpack.encode({"token": 1})])
def test_what_is_no_request_is_answered_and_survived(started: Started, message: bytes) -> None:
    with zmq.Context() as context, context.socket(zmq.REQ) as client:
        client.linger = 0
        client.connect(started.endpoint)
        client.send(message)
        assert client.poll(5000)
        assert "a request is a msgpack map" in msgspec.msgpack.decode(client.recv())["error"]

    switch(started.endpoint, TOKEN, {})


def test_who_does_not_answer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TetrisError, match=r"nobody did not answer within 0\.2 s"):
        switch(f"ipc://{tmp_path}/nobody", TOKEN, {}, timeout_s=0.2)


def test_the_secret_does_not_leave_this_machine() -> None:
    with pytest.raises(ConfigError, match=r"tcp://192\.0\.2\.1:5555 could be reached"):
        switch("tcp://192.0.2.1:5555", TOKEN, {})
