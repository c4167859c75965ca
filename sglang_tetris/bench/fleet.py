"""The servers of a run: started when needed, switched, emptied, and always stopped.

How a server is started and how a running one is switched is handed in: this module knows neither
SGLang nor the command line.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import httpx

from sglang_tetris.bench.arms import Arm, ServerSpec, start_args
from sglang_tetris.bench.steps import StepLog
from sglang_tetris.config import CONTROL_TOKEN
from sglang_tetris.errors import ConfigError, TetrisError, UserError

_FLUSH_TIMEOUT_S = 60  # for the last requests to leave
_TIMEOUT_S = 10.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Switch = Callable[[str, str, dict[str, Any]], None]


class Process(Protocol):
    """What is asked of a server's process."""

    def poll(self) -> int | None: ...


class RunningServer(Protocol):
    """What is asked of a started server."""

    @property
    def base_url(self) -> str: ...
    @property
    def process(self) -> Process: ...


Server = TypeVar("Server", bound=RunningServer)


class Launcher(Protocol[Server]):
    """Starts servers; ``sglang_tetris.cli.launch`` is one."""

    def started_server(
        self, args: Sequence[str], *, environ: Mapping[str, str] | None, log: Path | None
    ) -> AbstractContextManager[Server]: ...
    def wait_until_healthy(self, server: Server) -> None: ...
    def failure(self, server: Server, what: str) -> TetrisError: ...


@dataclass(slots=True, kw_only=True)
class Endpoint:
    """A server that can be asked, ours or not."""

    base_url: str
    model: str
    is_sglang: bool
    device: str | None = None
    dtype: str | None = None
    step_log: StepLog | None = None
    control: str | None = None
    arm: str | None = None  # whose settings it has, None if they cannot be switched
    warmed_up: set[str] = field(default_factory=set)  # arms

    def empty_cache(self) -> bool:
        """Wait until the server is idle and empty its prefix cache; False if it cannot do that."""
        if not self.is_sglang:
            return False
        response = httpx.post(
            f"{self.base_url}/flush_cache",
            params={"timeout": _FLUSH_TIMEOUT_S},
            timeout=_FLUSH_TIMEOUT_S + _TIMEOUT_S,
        )
        return response.status_code == httpx.codes.OK


@dataclass(slots=True, kw_only=True)
class _Running(Generic[Server]):
    server: Server
    stack: ExitStack
    endpoint: Endpoint | None = None  # once it is healthy
    step_log: Path | None = None
    control: str | None = None


class Fleet(Generic[Server]):
    """Keeps at most ``at_most`` servers of our own alive; the idle ones sleep."""

    def __init__(
        self,
        launcher: Launcher[Server],
        arms: Sequence[Arm],
        *,
        common_args: Sequence[str],
        directory: Path,
        at_most: int,
        switch: Switch,
    ) -> None:
        self._launcher = launcher
        self._arms_of: dict[ServerSpec, list[Arm]] = {}
        for arm in arms:
            self._arms_of.setdefault(arm.server, []).append(arm)
        self._common_args = tuple(common_args)
        self._directory = directory
        self._at_most = at_most
        self._switch = switch
        self._token = secrets.token_hex(16)
        self._num_started = 0
        self._running: dict[ServerSpec, _Running[Server]] = {}  # used last at the end
        self._remote: dict[ServerSpec, Endpoint] = {}

    def __enter__(self) -> Fleet[Server]:
        return self

    def __exit__(self, *_: object) -> None:
        with _without_interruption():
            for spec in list(self._running):
                self._stop(spec)

    def check_remotes(self) -> None:
        """Raise ``ConfigError`` for the first running server that does not answer."""
        for spec in self._arms_of:
            if spec.url is not None:
                try:
                    self._remote[spec] = _reached(spec.url)
                except UserError as error:
                    raise ConfigError(f"--arms url:{error}") from None

    def start(self, specs: Sequence[ServerSpec]) -> None:
        """Begin to start servers together; what goes wrong is said when one is asked for."""
        for spec in specs:
            if spec.url is None and spec not in self._running:
                self._make_room(keep=specs)
                with contextlib.suppress(TetrisError):
                    self._begin(spec)

    def get(self, arm: Arm) -> Endpoint:
        """Return the server of an arm with the arm's settings; raise ``TetrisError`` if it cannot
        be had."""
        spec = arm.server
        if spec in self._remote:
            return self._remote[spec]
        if spec not in self._running:
            self._make_room(keep=())
            self._begin(spec)
        self._running[spec] = self._running.pop(spec)
        try:
            endpoint = self._healthy(self._running[spec])
        except TetrisError:
            self._stop(spec)
            raise
        if endpoint.control is not None and endpoint.arm != arm.name:
            self._switch(endpoint.control, self._token, arm.complete_settings)
            endpoint.arm = arm.name
        return endpoint

    def check_alive(self, arm: Arm) -> None:
        """Raise if the arm's server has died, with the end of its log, and forget it."""
        running = self._running.get(arm.server)
        if running is None or (code := running.server.process.poll()) is None:
            return
        error = self._launcher.failure(running.server, f"died with exit code {code}")
        self._stop(arm.server)
        raise error

    def _healthy(self, running: _Running[Server]) -> Endpoint:
        if running.endpoint is None:
            self._launcher.wait_until_healthy(running.server)
            running.endpoint = _reached(running.server.base_url)
            running.endpoint.control = running.control
            if running.step_log is not None:
                running.endpoint.step_log = StepLog(running.step_log)
        return running.endpoint

    def _begin(self, spec: ServerSpec) -> None:
        arms = self._arms_of[spec]
        self._num_started += 1
        name = f"{self._num_started}-{spec.kind}"
        args = [*start_args(spec, arms), *self._common_args]
        step_log, control = None, None
        if spec.kind == "tetris":
            step_log = self._directory / f"{name}-steps.jsonl"
            args += ["--tetris-step-log", str(step_log)]
            if len(arms) > 1:
                control = f"ipc://{self._directory / name}.socket"
                args += ["--tetris-control", control]
        environ = {CONTROL_TOKEN: self._token} if control else {}
        stack = ExitStack()
        log = self._directory / f"{name}.log"
        try:
            server = stack.enter_context(
                self._launcher.started_server(args, environ=environ, log=log)
            )
        except OSError as error:
            raise UserError(f"{log}: cannot be written: {error.strerror}") from None
        self._running[spec] = _Running(
            server=server, stack=stack, step_log=step_log, control=control
        )

    def _make_room(self, *, keep: Sequence[ServerSpec]) -> None:
        for spec in [spec for spec in self._running if spec not in keep]:
            if len(self._running) < self._at_most:
                return
            with _without_interruption():
                self._stop(spec)

    def _stop(self, spec: ServerSpec) -> None:
        running = self._running.pop(spec)
        # One that has died says so a second time here; who used it has heard it already.
        with contextlib.suppress(TetrisError):
            running.stack.close()


def _reached(url: str) -> Endpoint:
    """Return what a running server says about itself."""
    try:
        response = httpx.get(f"{url}/v1/models", timeout=_TIMEOUT_S)
        response.raise_for_status()
        model = str(response.json()["data"][0]["id"])
        info = httpx.get(f"{url}/server_info", timeout=_TIMEOUT_S)
        settings = info.json() if info.status_code == httpx.codes.OK else {}
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UserError(f"{url}: cannot be reached: {error}") from None
    except (ValueError, LookupError, TypeError):
        raise UserError(f"{url}: is no OpenAI-compatible server") from None
    return Endpoint(
        base_url=url,
        model=model,
        is_sglang="model_path" in settings,
        device=settings.get("device"),
        dtype=settings.get("dtype"),
    )


@contextlib.contextmanager
def _without_interruption() -> Iterator[None]:
    """Let a second Ctrl-C not keep servers from being stopped."""
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
