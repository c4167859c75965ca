"""The servers that end-to-end tests share: each kind is started once, when a test first asks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from sglang_tetris.cli.launch import Server, running_server
from sglang_tetris.metrics import StepRecord, read_step_log
from sglang_tetris.models.demo_target import demo_target
from tests.support import plugins
from tests.support.models import truncated_target

MOST_AT_ONCE = 3  # besides those that tests start themselves; each takes about 4 GB
DRAFT_LAYERS = 27  # right about every second time
COMMON = (
    "--max-total-tokens",
    "60000",
    "--enable-cache-report",
    "--sleep-on-idle",
    "--enable-return-hidden-states",
    "--enable-custom-logit-processor",
    "--constrained-json-disable-any-whitespace",
    "--tool-call-parser",
    "hermes",
    "--log-level",
    "warning",
)
# Small enough to bind nearly always with eight chats.
LOOKUP = ("--tetris-policy", "fixed", "--tetris-capacity", "6", "--tetris-draft-tokens", "6")
LM = ("--tetris-policy", "fixed", "--tetris-capacity", "8", "--tetris-draft-tokens", "3")


@dataclass(frozen=True)
class Started:
    """A running server and the counts of its steps so far."""

    server: Server
    step_log: Path

    @property
    def base_url(self) -> str:
        return self.server.base_url

    def steps(self) -> list[StepRecord]:
        """Return every step that the server has made; it must be idle."""
        if not self.step_log.exists():
            return []
        return list(read_step_log(self.step_log))


class Servers:
    """Keeps the servers used last; ``get`` names a kind: SOURCE, or SOURCE+PLUGIN."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._num_started = 0
        self._running: dict[str, tuple[ExitStack, Started]] = {}

    def get(self, kind: str) -> Started:
        """Return the running server of this kind."""
        if kind in self._running:
            self._running[kind] = self._running.pop(kind)  # used last
            return self._running[kind][1]
        while len(self._running) >= MOST_AT_ONCE:
            self.stop(next(iter(self._running)))
        stack = ExitStack()
        self._num_started += 1
        directory = self._directory / str(self._num_started)
        directory.mkdir()
        started = stack.enter_context(start(kind, directory))
        self._running[kind] = (stack, started)
        return started

    def stop(self, kind: str) -> None:
        """Stop one server now."""
        stack, _ = self._running.pop(kind)
        stack.close()

    def close(self) -> None:
        """Stop them all."""
        for kind in list(self._running):
            self.stop(kind)


@contextlib.contextmanager
def start(
    kind: str,
    directory: Path,
    *args: str,
    environ: dict[str, str] | None = None,
    model: Path | None = None,
) -> Iterator[Started]:
    """Run one server of ``model``, by default the demo target; further ``args`` go last."""
    source, _, plugin = kind.partition("+")
    here = directory / kind
    here.mkdir()
    step_log = here / "steps.jsonl"
    own = {
        "plain": ["--no-speculation"],
        "lookup": ["--tetris-step-log", str(step_log), *LOOKUP],
        "lm": ["--tetris-step-log", str(step_log), *LM],
        "self": ["--tetris-step-log", str(step_log), *LM],  # the target drafts for itself
    }[source]
    if source == "lm":
        own += ["--speculative-draft-model-path", str(truncated_target(DRAFT_LAYERS))]
    target = str(model or demo_target())
    if source == "self":
        own += ["--speculative-draft-model-path", target]
    environ = dict(environ or {})
    if plugin:
        environ |= plugins.environ_with(plugin, here)
    with running_server(
        ["--model-path", target, *COMMON, *own, *args], environ=environ, log=here / "server.log"
    ) as server:
        yield Started(server, step_log)
