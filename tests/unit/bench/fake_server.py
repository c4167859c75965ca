"""An OpenAI-compatible server that answers from a script, and a launcher of servers like it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from sglang_tetris.errors import TetrisError


class Chunk(NamedTuple):
    """One chunk of an answer: sent after a delay, with so many tokens."""

    text: str
    num_tokens: int = 1
    delay_s: float = 0.0


@dataclass
class Script:
    """How the server answers."""

    chunks: Sequence[Chunk] = (Chunk("one "), Chunk("two three", 2))
    status: int = 200
    finish_reason: str | None = "stop"
    has_usage_per_chunk: bool = True
    has_usage: bool = True
    is_sglang: bool = True
    at_once: int = 1  # the first so many requests are answered when all of them are there
    breaks_after: int | None = None  # chunks, then the connection is closed
    verify_steps: int = 2
    correct_drafts: int = 1
    num_prompt_tokens: int = 10
    num_cached_tokens: int = 4


class FakeServer(ThreadingHTTPServer):
    """Answers every request from its script and notes what it was asked."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, script: Script | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script or Script()
        self.requests: list[dict[str, Any]] = []
        self.num_flushes = 0
        self.all_there = threading.Barrier(self.script.at_once)
        self.num_at_once = 0
        self.most_at_once = 0
        self.lock = threading.Lock()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """Say nothing when a client has left."""


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._send_json({"data": [{"id": "models/fake"}]})
        elif self.path == "/server_info" and self.server.script.is_sglang:
            self._send_json({"model_path": "models/fake", "dtype": "bfloat16", "device": "cpu"})
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        if self.path.startswith("/flush_cache"):
            self.server.num_flushes += 1
            self._send_json({})
            return
        length = int(self.headers["Content-Length"])
        request = json.loads(self.rfile.read(length))
        with self.server.lock:
            self.server.requests.append(request)
            self.server.num_at_once += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.num_at_once)
            is_awaited = len(self.server.requests) <= self.server.script.at_once
        try:
            if is_awaited:
                self.server.all_there.wait(timeout=30)
            is_whole = self._answer()
        finally:
            # Before the client can know that it is done, or it might be back already.
            with self.server.lock:
                self.server.num_at_once -= 1
        if is_whole:
            self.wfile.write(b"data: [DONE]\n\n")

    def _answer(self) -> bool:
        """Send all but the end of an answer; return False if it has no end."""
        script = self.server.script
        if script.status != 200:
            self.send_error(script.status, "no")
            return False
        self.send_response(200)
        self.end_headers()
        num_tokens = 0
        for index, chunk in enumerate(script.chunks):
            if index == script.breaks_after:
                return False
            time.sleep(chunk.delay_s)
            num_tokens += chunk.num_tokens
            event: dict[str, Any] = {"choices": [{"delta": {"content": chunk.text}}]}
            if script.has_usage_per_chunk:
                event["usage"] = self._usage(num_tokens)
            self._send_event(event)
        self._send_event({"choices": [{"delta": {}, "finish_reason": script.finish_reason}]})
        if script.is_sglang:
            details = {
                "spec_verify_ct": script.verify_steps,
                "spec_num_correct_drafts": script.correct_drafts,
            }
            self._send_event({"choices": [], "sglext": {"spec_tokens_details": details}})
        if script.has_usage:
            self._send_event({"choices": [], "usage": self._usage(num_tokens)})
        return True

    def _usage(self, num_tokens: int) -> dict[str, Any]:
        script = self.server.script
        return {
            "prompt_tokens": script.num_prompt_tokens,
            "completion_tokens": num_tokens,
            "prompt_tokens_details": {"cached_tokens": script.num_cached_tokens},
        }

    def _send_event(self, event: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()

    def _send_json(self, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(script: Script | None = None) -> Iterator[FakeServer]:
    """Run a server for as long as the block lasts."""
    with FakeServer(script) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@dataclass
class FakeProcess:
    """A process that dies when it is told to."""

    exit_code: int | None = None

    def poll(self) -> int | None:
        return self.exit_code


@dataclass
class Launched:
    """A started fake server, with what it was started with."""

    base_url: str
    args: list[str]
    environ: dict[str, str]
    fake: FakeServer
    process: FakeProcess = field(default_factory=FakeProcess)


@dataclass
class FakeLauncher:
    """Starts fake servers and remembers them; ``unhealthy`` flags keep a server from coming up."""

    script: Script = field(default_factory=Script)
    unhealthy: tuple[str, ...] = ()
    started: list[Launched] = field(default_factory=list)
    alive: list[Launched] = field(default_factory=list)
    most_alive: int = 0

    @contextlib.contextmanager
    def started_server(
        self, args: Sequence[str], *, environ: Mapping[str, str] | None, log: Path | None
    ) -> Iterator[Launched]:
        del log
        with serving(self.script) as fake:
            launched = Launched(fake.base_url, list(args), dict(environ or {}), fake)
            self.started.append(launched)
            self.alive.append(launched)
            self.most_alive = max(self.most_alive, len(self.alive))
            try:
                yield launched
            finally:
                self.alive.remove(launched)
            if launched.process.exit_code is not None:
                raise self.failure(launched, "ended by itself")

    def wait_until_healthy(self, server: Launched) -> None:
        if set(self.unhealthy) & set(server.args):
            raise self.failure(server, "did not come up")

    def failure(self, server: Launched, what: str) -> TetrisError:
        del server
        return TetrisError(f"the server {what}; its log ends with\nlast words")
