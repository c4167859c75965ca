"""Chats run at once, and each turn follows the server's own answer. The server here echoes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from sglang_tetris.cli.demo_chats import hold_chats, warm_up
from sglang_tetris.cli.demo_conversations import CONVERSATIONS


class Echo(ThreadingHTTPServer):
    """Answers with the number of messages so far; waits until as many as ``at_once`` have come."""

    daemon_threads = True

    def __init__(self, at_once: int = 1, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), EchoHandler)
        self.all_there = threading.Barrier(at_once)
        self.status = status
        self.requests: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class EchoHandler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: Echo

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        self.server.all_there.wait(timeout=10)
        num_messages = len(request["messages"])
        choice = {
            "message": {"content": f"answer to {num_messages}"},
            "response_token_ids": [num_messages] * 2,
        }
        usage = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": num_messages}}
        body = json.dumps({"choices": [choice], "usage": usage}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def echo(request: pytest.FixtureRequest) -> Iterator[Echo]:
    """Run a server that is made with the test's parameters."""
    with Echo(**getattr(request, "param", {})) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("echo", [{"at_once": 3}], indirect=True)
def test_chats_are_held_at_once(echo: Echo) -> None:
    num_answers = []

    run = hold_chats(
        echo.url,
        CONVERSATIONS[:3],
        num_turns=2,
        max_tokens=5,
        on_answer=lambda: num_answers.append(1),
    )

    assert [(answer.title, answer.turn) for answer in run.answers] == [
        (chat.title, turn) for chat in CONVERSATIONS[:3] for turn in (1, 2)
    ]
    assert len(num_answers) == 6
    assert run.output_tokens_per_s == 12 / run.seconds


def test_a_turn_follows_the_server_s_own_answer(echo: Echo) -> None:
    chat = CONVERSATIONS[0]

    run = hold_chats(echo.url, [chat], num_turns=3, max_tokens=5, on_answer=lambda: None)

    assert echo.requests[-1]["messages"] == [
        {"role": "user", "content": chat.turns[0]},
        {"role": "assistant", "content": "answer to 1"},
        {"role": "user", "content": chat.turns[1]},
        {"role": "assistant", "content": "answer to 3"},
        {"role": "user", "content": chat.turns[2]},
    ]
    assert echo.requests[-1]["temperature"] == 0
    assert echo.requests[-1]["max_tokens"] == 5
    assert run.answers[-1].token_ids == (5, 5)
    assert [answer.num_cached_tokens for answer in run.answers] == [1, 3, 5]


@pytest.mark.parametrize("echo", [{"status": 500}], indirect=True)
def test_an_error_of_the_server_is_an_error(echo: Echo) -> None:
    with pytest.raises(httpx.HTTPStatusError, match="500"):
        warm_up(echo.url)
