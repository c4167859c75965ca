"""A run: every arm under every load, repeat by repeat, so that a machine's drift hits all alike.

A machine that others share changes its speed within seconds. So a repeat is held in short segments:
the chats are cut into parts, all arms hold one part in turns before any goes on to the next, and
who begins rotates. A workload that is too small to be cut is held again, lap by lap. Where there
are more servers than may be alive, groups of them take turns, and the groups go forth and back.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
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
_LEAST_ROUNDS = 4  # chats of a part for each held at once, or a part would be mostly its own end


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
    segments: int  # that an arm's repeat under one load is held in, if there are chats or time
    enough_s: float  # no further lap in a repeat once every arm was measured for so long
    num_warm_up_chats: int
    servers_at_once: int

    @property
    def num_measurements(self) -> int:
        return self.repeats * len(self.loads) * len(self.arms)

    @property
    def num_turns(self) -> int:
        return sum(len(chat.turns) for chat in self.chats)

    def parts(self, load: Load) -> list[tuple[Chat, ...]]:
        """Return the chats in the parts that one segment each holds.

        An open loop is not cut: it would begin anew with every part.
        """
        if load.concurrency is None:
            return [self.chats]
        least = load.concurrency * (_LEAST_ROUNDS if load.concurrency > 1 else 1)
        num = max(1, min(self.segments, len(self.chats) // least))
        bounds = [len(self.chats) * index // num for index in range(num + 1)]
        return [self.chats[low:high] for low, high in pairwise(bounds)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One arm under one load with one part of the chats, measured once."""

    arm: str
    load: Load
    repeat: int
    lap: int  # of the repeat, from 0
    part: int  # of the chats, from 0
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
    """What has been measured so far: it is filled while the run goes on, and survives it.

    An arm's laps are complete, so that all its repeats asked the same.
    """

    segments: list[Segment] = field(default_factory=list)
    failures: dict[str, TetrisError] = field(default_factory=dict)  # by arm
    model: str | None = None
    device: str | None = None
    dtype: str | None = None


class Watcher(Protocol):
    """Is told how the run goes."""

    def servers_start(self, num_servers: int) -> None: ...
    def segment_starts(self, arm: str, load: Load, repeat: int, num_turns: int) -> None: ...
    def turn_ends(self) -> None: ...
    def repeat_ends(self, segments: Sequence[Segment]) -> None: ...
    def arm_fails(self, arm: str, error: TetrisError) -> None: ...


def run(plan: Plan, fleet: Fleet[Any], findings: Findings, watcher: Watcher) -> None:
    """Measure everything in ``plan`` into ``findings``. An arm that fails is left out from then on."""
    running = _Run(plan, fleet, findings, watcher)
    groups = _groups(plan.arms, plan.servers_at_once)
    for repeat in range(plan.repeats):
        for group in groups if repeat % 2 == 0 else reversed(groups):
            arms = [arm for arm in group if arm.name not in findings.failures]
            specs = list(dict.fromkeys(arm.server for arm in arms))
            watcher.servers_start(len(specs))
            fleet.start(specs)
            for load in plan.loads:
                running.repeat(repeat, load, arms)


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


def _order(plan: Plan, arms: Sequence[Arm], load: Load, turn: int) -> list[Arm]:
    """Return the arms as shuffled once for each load, rotated by the turn."""
    order = list(arms)
    random.Random(f"{plan.manner.seed}/{plan.loads.index(load)}").shuffle(order)
    shift = turn % max(1, len(order))
    return order[shift:] + order[:shift]


@dataclass(frozen=True, slots=True)
class _Run:
    """What all measurements of a run share."""

    plan: Plan
    fleet: Fleet[Any]
    findings: Findings
    watcher: Watcher

    def repeat(self, repeat: int, load: Load, arms: Sequence[Arm]) -> None:
        """Measure the arms under one load: one lap over the chats, and more while they are short."""
        parts = self.plan.parts(load)
        before = len(self.findings.segments)
        for lap in count():
            self._lap(repeat, load, arms, parts, lap)
            measured = self.findings.segments[before:]
            seconds = dict.fromkeys((segment.arm for segment in measured), 0.0)
            for segment in measured:
                seconds[segment.arm] += segment.seconds
            is_long = all(spent >= self.plan.enough_s for spent in seconds.values())
            if is_long or (lap + 1) * len(parts) >= self.plan.segments:
                self.watcher.repeat_ends(measured)
                return

    def _lap(
        self,
        repeat: int,
        load: Load,
        arms: Sequence[Arm],
        parts: Sequence[tuple[Chat, ...]],
        lap: int,
    ) -> None:
        measured: dict[str, list[Segment]] = {arm.name: [] for arm in arms}
        for part, chats in enumerate(parts):
            for arm in _order(self.plan, arms, load, repeat + lap * len(parts) + part):
                if arm.name in self.findings.failures:
                    continue
                num_turns = sum(len(chat.turns) for chat in chats)
                self.watcher.segment_starts(arm.name, load, repeat, num_turns)
                try:
                    turns, steps = self._measured(arm, load, chats)
                except TetrisError as error:
                    self.findings.failures[arm.name] = error
                    self.watcher.arm_fails(arm.name, error)
                    continue
                measured[arm.name].append(
                    Segment(
                        arm=arm.name,
                        load=load,
                        repeat=repeat,
                        lap=lap,
                        part=part,
                        turns=tuple(turns),
                        steps=tuple(steps),
                    )
                )
                if part == len(parts) - 1:
                    self.findings.segments += measured[arm.name]

    def _measured(
        self, arm: Arm, load: Load, chats: Sequence[Chat]
    ) -> tuple[list[Turn], list[StepRecord]]:
        """Hold the chats with an empty prefix cache.

        Arms that share a server would find each other's prompts in it otherwise.
        """
        plan = self.plan
        endpoint = self.fleet.get(arm)
        self.findings.model = self.findings.model or endpoint.model
        self.findings.device = self.findings.device or endpoint.device
        self.findings.dtype = self.findings.dtype or endpoint.dtype
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
            self.fleet.check_alive(arm)
            raise TetrisError(f"{endpoint.base_url} does not answer: {error!r}") from None

        start_s = time.time()
        turns = hold_chats(
            endpoint.base_url, chats, load, request, plan.manner, on_turn=self.watcher.turn_ends
        )
        self.fleet.check_alive(arm)
        if not any(turn.reply.num_output_tokens for turn in turns):
            raise TetrisError(f"no request was answered; the first: {turns[0].reply.error}")
        log = endpoint.step_log
        return turns, [] if log is None else log.take(since_s=start_s)


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
