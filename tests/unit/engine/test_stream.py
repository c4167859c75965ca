"""Where records go: a file that may fill its disk, and a socket whose readers may stall."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from sglang_tetris.config import TetrisConfig
from sglang_tetris.engine.stream import Appender, StepLog, StepStream, recorders_of
from sglang_tetris.errors import ConfigError
from sglang_tetris.metrics import StepRecord, read_step_log, unpack_step

STEPS = [StepRecord(time_s=float(i), num_requests=i, seconds={"verify": 0.5}) for i in range(5)]


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    """Return where a test publishes."""
    return f"ipc://{tmp_path}/steps"


@pytest.fixture
def subscriber(endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    """Listen to everything."""
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.subscribe(b"")
        socket.connect(endpoint)
        yield socket


def publish_until_heard(stream: StepStream, subscriber: zmq.Socket[bytes]) -> None:
    """Publish until the subscription has arrived, and drop what was heard."""
    deadline = time.monotonic() + 10
    while not subscriber.poll(10):
        assert time.monotonic() < deadline
        stream.add(STEPS[0])
    while subscriber.poll(50):
        subscriber.recv()


def test_nothing_is_recorded_that_was_not_asked_for(tmp_path: Path) -> None:
    assert recorders_of(TetrisConfig()) == []
    (log,) = recorders_of(TetrisConfig(step_log=tmp_path / "log"))
    assert isinstance(log, StepLog)
    log.close()


def test_a_log_keeps_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    for steps in (STEPS[:2], STEPS[2:]):
        log = StepLog(path)
        for step in steps:
            log.add(step)
        log.close()

    assert read_step_log(path) == STEPS


def test_a_full_disk_ends_the_file_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    file = Appender("--tetris-step-log", Path("/dev/full"))

    file.write(b"first")
    file.write(b"second")

    (record,) = caplog.records
    assert record.getMessage() == (
        "--tetris-step-log /dev/full: No space left on device; it ends here"
    )


def test_a_subscriber_hears_every_step(endpoint: str, subscriber: zmq.Socket[bytes]) -> None:
    stream = StepStream(endpoint)
    publish_until_heard(stream, subscriber)

    for step in STEPS:
        stream.add(step)

    assert [unpack_step(subscriber.recv()) for _ in STEPS] == STEPS
    stream.close()


def test_nobody_is_waited_for(endpoint: str, subscriber: zmq.Socket[bytes]) -> None:
    """Far more than the socket keeps for a subscriber that never reads."""
    stream = StepStream(endpoint)
    publish_until_heard(stream, subscriber)
    big = StepRecord(verify_lens=[1] * 1000)

    start = time.monotonic()
    for _ in range(20_000):
        stream.add(big)

    assert time.monotonic() - start < 10
    stream.close()
    num_heard = 0
    while subscriber.poll(100):
        subscriber.recv()
        num_heard += 1
    assert num_heard < 20_000


def test_an_endpoint_in_use_is_named(tmp_path: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1")

        with pytest.raises(ConfigError, match=f"--tetris-step-stream .*{port}: Address already"):
            StepStream(f"tcp://127.0.0.1:{port}")
