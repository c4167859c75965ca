"""A run: every arm under every load, repeat by repeat, so that a machine's drift hits all alike.

Within a repeat the arms follow one another under the same load, in an order that rotates from
repeat to repeat. Where there are more servers than may be alive, groups of them take turns, and
the groups go forth and back.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import httpx

from sglang_tetris.bench.arms import Arm, ServerSpec
from sglang_tetris.bench.client import Ask
from sglang_tetris.bench.fleet import Endpoint, Fleet
from sglang_tetris.bench.load import Load, Manner, Turn, hold_chats
from sglang_tetris.bench.workload import Chat
from sglang_tetris.errors import TetrisError
from sglang_tetris.metrics import StepRecord

_WARM_UP_TOKENS = 16
_WARM_UP_TURNS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be measured."""

    arms: tuple[Arm, ...]
    chats: tuple[Chat, ...]
    loads: tuple[Load, ...]
    manner: Manner
    max_tokens: int
    temperature: float
    timeout_s: float
    repeats: int
    num_warm_up_chats: int
    servers_at_once: int

    @property
    def num_segments(self) -> int:
        return self.repeats * len(self.loads) * len(self.arms)

    @property
    def num_turns(self) -> int:
        return sum(len(chat.turns) for chat in self.chats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One arm under one load in one repeat, measured."""

    arm: str
    load: Load
    repeat: int
    turns: tuple[Turn, ...]
    steps: tuple[StepRecord, ...]  # empty where the server has no step log

    @property
    def seconds(self) -> float:
        """From the first request to the end of the last answer."""
        replies = [turn.reply for turn in self.turns]
        return max(reply.end_s for reply in replies) - min(reply.sent_s for reply in replies)

    @property
    def num_output_tokens(self) -> int:
        return sum(turn.reply.num_output_tokens for turn in self.turns)


@dataclass(slots=True, kw_only=True)
class Findings:
    """What has been measured so far: it is filled while the run goes on, and survives it."""

    segments: list[Segment] = field(default_factory=list)
    failures: dict[str, TetrisError] = field(default_factory=dict)  # by arm
    model: str | None = None
    device: str | None = None
    dtype: str | None = None


class Watcher(Protocol):
    """Is told how the run goes."""

    def servers_start(self, num_servers: int) -> None: ...
    def segment_starts(self, arm: str, load: Load, repeat: int) -> None: ...
    def turn_ends(self) -> None: ...
    def segment_ends(self, segment: Segment) -> None: ...
    def arm_fails(self, arm: str, error: TetrisError) -> None: ...


def run(plan: Plan, fleet: Fleet[Any], findings: Findings, watcher: Watcher) -> None:
    """Measure everything in ``plan`` into ``findings``. An arm that fails is left out from then on."""
    groups = _groups(plan.arms, plan.servers_at_once)
    for repeat in range(plan.repeats):
        for group in groups if repeat % 2 == 0 else reversed(groups):
            arms = [arm for arm in group if arm.name not in findings.failures]
            specs = list(dict.fromkeys(arm.server for arm in arms))
            watcher.servers_start(len(specs))
            fleet.start(specs)
            for load, arm in _order(plan, arms, repeat):
                if arm.name in findings.failures:
                    continue
                watcher.segment_starts(arm.name, load, repeat)
                try:
                    segment = _segment(plan, fleet, findings, arm, load, repeat, watcher)
                except TetrisError as error:
                    findings.failures[arm.name] = error
                    watcher.arm_fails(arm.name, error)
                    continue
                findings.segments.append(segment)
                watcher.segment_ends(segment)


def _groups(arms: Sequence[Arm], servers_at_once: int) -> list[list[Arm]]:
    """Return the arms in groups whose servers may be alive together; others' servers are free."""
    specs = list(dict.fromkeys(arm.server for arm in arms if arm.server.url is None))
    group_of: dict[ServerSpec, int] = {
        spec: index // servers_at_once for index, spec in enumerate(specs)
    }
    groups: list[list[Arm]] = [[] for _ in range(max(group_of.values(), default=0) + 1)]
    for arm in arms:
        groups[group_of.get(arm.server, 0)].append(arm)
    return groups


def _order(plan: Plan, arms: Sequence[Arm], repeat: int) -> Iterator[tuple[Load, Arm]]:
    """Yield every load with every arm: shuffled once for each load, then rotated by the repeat."""
    for index, load in enumerate(plan.loads):
        shuffled = list(arms)
        random.Random(f"{plan.manner.seed}/{index}").shuffle(shuffled)
        shift = repeat % max(1, len(shuffled))
        for arm in shuffled[shift:] + shuffled[:shift]:
            yield load, arm


def _segment(
    plan: Plan,
    fleet: Fleet[Any],
    findings: Findings,
    arm: Arm,
    load: Load,
    repeat: int,
    watcher: Watcher,
) -> Segment:
    endpoint = fleet.get(arm)
    findings.model = findings.model or endpoint.model
    findings.device = findings.device or endpoint.device
    findings.dtype = findings.dtype or endpoint.dtype
    request = Ask(
        model=endpoint.model,
        max_tokens=plan.max_tokens,
        temperature=plan.temperature,
        timeout_s=plan.timeout_s,
        is_sglang=endpoint.is_sglang,
    )
    try:
        if arm.name not in endpoint.warmed_up:
            _warm_up(plan, endpoint, request)
            endpoint.warmed_up.add(arm.name)
        endpoint.empty_cache()
    except httpx.HTTPError as error:
        fleet.check_alive(arm)
        raise TetrisError(f"{endpoint.base_url} does not answer: {error!r}") from None

    if endpoint.step_log is not None:
        endpoint.step_log.skip()
    start_s = time.time()
    turns = hold_chats(
        endpoint.base_url, plan.chats, load, request, plan.manner, on_turn=watcher.turn_ends
    )
    fleet.check_alive(arm)
    if not any(turn.reply.num_output_tokens for turn in turns):
        raise TetrisError(f"no request was answered; the first: {turns[0].reply.error}")
    steps = [] if endpoint.step_log is None else endpoint.step_log.take(since_s=start_s)
    return Segment(arm=arm.name, load=load, repeat=repeat, turns=tuple(turns), steps=tuple(steps))


def _warm_up(plan: Plan, endpoint: Endpoint, request: Ask) -> None:
    """Let the server do once, with this arm's settings, what it does slower the first time."""
    chats = [
        replace(chat, turns=chat.turns[:_WARM_UP_TURNS])
        for chat in plan.chats[: plan.num_warm_up_chats]
    ]
    if chats:
        hold_chats(
            endpoint.base_url,
            chats,
            Load(concurrency=len(chats)),
            replace(request, max_tokens=min(request.max_tokens, _WARM_UP_TOKENS)),
            plan.manner,
            on_turn=_ignore,
        )


def _ignore() -> None:
    """Count no turn of the warm-up."""
