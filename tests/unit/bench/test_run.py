"""The order of a run, and that one arm's misfortune is not the others'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sglang_tetris.bench import steps
from sglang_tetris.bench.arms import parse_arms
from sglang_tetris.bench.fleet import Fleet
from sglang_tetris.bench.load import Load, Manner
from sglang_tetris.bench.run import Findings, Plan, Segment, run
from sglang_tetris.bench.workload import Chat
from sglang_tetris.errors import TetrisError
from tests.unit.bench.fake_server import FakeLauncher, Launched, Script

CHATS = tuple(Chat(chat_id=name, category="c", turns=("one", "two")) for name in "ab")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_POLL_S", 0.001)


@dataclass
class Watched:
    """Notes what it is told; ``on_start`` may interfere."""

    launcher: FakeLauncher
    kill: tuple[str, int] | None = None  # the TETRIS server, while this arm is measured, and when
    interrupt: tuple[str, int] | None = None
    begun: list[tuple[str, str, int]] = field(default_factory=list)
    num_turns: int = 0
    failed: list[str] = field(default_factory=list)

    def servers_start(self, num_servers: int) -> None:
        assert num_servers >= 0

    def segment_starts(self, arm: str, load: Load, repeat: int, num_turns: int) -> None:
        assert num_turns > 0
        self.begun.append((arm, str(load), repeat))
        if (arm, repeat) == self.interrupt:
            raise KeyboardInterrupt

    def turn_ends(self) -> None:
        self.num_turns += 1
        if self.kill == (self.begun[-1][0], self.begun[-1][2]):
            (server,) = (s for s in self.launcher.alive if "--tetris-policy" in s.args)
            server.process.exit_code = -9

    def repeat_ends(self, segments: Sequence[Segment]) -> None:
        assert all(segment.seconds > 0 for segment in segments)

    def arm_fails(self, arm: str, error: TetrisError) -> None:
        assert str(error)
        self.failed.append(arm)


def plan_of(words: str, **changes: object) -> Plan:
    """Return a small plan."""
    given: dict[str, object] = {
        "arms": tuple(parse_arms(words, draft_model=None)),
        "chats": CHATS,
        "loads": (Load(concurrency=1), Load(concurrency=2)),
        "manner": Manner(seed=5),
        "max_tokens": 8,
        "temperature": 0.0,
        "timeout_s": 10.0,
        "repeats": 3,
        "segments": 1,
        "enough_s": 0.0,
        "num_warm_up_chats": 1,
        "servers_at_once": 3,
    }
    return Plan(**given | changes)  # type: ignore[arg-type]


def ran(plan: Plan, watched: Watched, tmp_path: Path) -> Findings:
    """Run a plan on fake servers."""
    findings = Findings()
    fleet: Fleet[Launched] = Fleet(
        watched.launcher,
        plan.arms,
        common_args=[],
        directory=tmp_path,
        at_most=plan.servers_at_once,
        switch=lambda *_: None,
    )
    with fleet:
        run(plan, fleet, findings, watched)
    return findings


def test_every_arm_is_measured_under_every_load_in_every_repeat(tmp_path: Path) -> None:
    plan = plan_of("none,fixed:4,paper:2+2")
    watched = Watched(FakeLauncher())

    findings = ran(plan, watched, tmp_path)

    assert len(set(watched.begun)) == plan.num_measurements == 18
    assert len(findings.segments) == 18
    assert findings.failures == {}
    assert watched.num_turns == 18 * plan.num_turns
    assert len(watched.launcher.started) == 2
    assert findings.model == "models/fake"


def test_each_arm_takes_each_place_once(tmp_path: Path) -> None:
    plan = plan_of("none,fixed:4,paper:2+2")
    watched = Watched(FakeLauncher())
    ran(plan, watched, tmp_path)

    for load in ("1 at once", "2 at once"):
        orders = [
            [arm for arm, of, number in watched.begun if (of, number) == (load, repeat)]
            for repeat in range(3)
        ]
        for place in range(3):
            assert len({order[place] for order in orders}) == 3, orders
    # Arms that are compared follow one another directly.
    assert [key[1:] for key in watched.begun[::3]] == [key[1:] for key in watched.begun[2::3]]


def test_the_order_is_that_of_the_seed(tmp_path: Path) -> None:
    orders = []
    for seed in (1, 1, 2):
        watched = Watched(FakeLauncher())
        plan = plan_of("fixed:4,fixed:3,paper:2+2", manner=Manner(seed=seed), repeats=1)
        ran(plan, watched, tmp_path)
        orders.append(watched.begun)

    assert orders[0] == orders[1] != orders[2]


def test_more_servers_than_fit_take_turns_forth_and_back(tmp_path: Path) -> None:
    plan = plan_of("none,fixed:4,sglang:NGRAM", servers_at_once=1, repeats=2)
    watched = Watched(FakeLauncher())

    findings = ran(plan, watched, tmp_path)

    assert [arm for arm, load, _ in watched.begun if load == "1 at once"] == [
        "none", "fixed:4", "sglang:NGRAM", "sglang:NGRAM", "fixed:4", "none",
    ]  # fmt: skip
    assert watched.launcher.most_alive == 1
    assert len(watched.launcher.started) == 5
    assert len(findings.segments) == 12


def test_chats_and_caches_are_the_same_for_all(tmp_path: Path) -> None:
    watched = Watched(FakeLauncher())
    ran(plan_of("none,sglang:NGRAM", num_warm_up_chats=0), watched, tmp_path)

    first, second = watched.launcher.started
    # At once, requests may arrive in either order.
    assert sorted(map(str, first.fake.requests)) == sorted(map(str, second.fake.requests))
    assert len(first.fake.requests) == 6 * 4
    assert first.fake.num_flushes == 6


def test_a_repeat_is_cut_into_parts_and_the_arms_take_turns_between_them(tmp_path: Path) -> None:
    chats = tuple(Chat(chat_id=str(n), category="c", turns=("one",) * (n + 1)) for n in range(5))
    plan = plan_of("none,fixed:4", chats=chats, segments=3, repeats=1, num_warm_up_chats=0)
    watched = Watched(FakeLauncher())

    findings = ran(plan, watched, tmp_path)

    alone = [segment for segment in findings.segments if segment.load == plan.loads[0]]
    held = {arm: [s for s in alone if s.arm == arm] for arm in ("none", "fixed:4")}
    for segments in held.values():
        assert [(s.lap, s.part) for s in segments] == [(0, 0), (0, 1), (0, 2)]
        ids = [list(dict.fromkeys(turn.chat_id for turn in s.turns)) for s in segments]
        assert ids == [["0"], ["1", "2"], ["3", "4"]]
        assert len({turn.chat_id for s in segments for turn in s.turns}) == len(chats)
    order = [arm for arm, load, _ in watched.begun if load == "1 at once"]
    assert [set(order[n : n + 2]) for n in (0, 2, 4)] == [{"none", "fixed:4"}] * 3
    assert order[0] == order[3] == order[4]  # who begins, rotates
    # No arm finds in the prefix cache what another one left there: 3 parts and 1.
    assert [server.fake.num_flushes for server in watched.launcher.started] == [3 + 1, 3 + 1]


def test_few_chats_are_held_again_until_there_are_segments_enough(tmp_path: Path) -> None:
    plan = plan_of("none,fixed:4", loads=(Load(concurrency=2),), segments=4, repeats=2, enough_s=60)
    watched = Watched(FakeLauncher())

    findings = ran(plan, watched, tmp_path)

    places = [(s.repeat, s.lap, s.part) for s in findings.segments if s.arm == "none"]
    assert places == [(repeat, lap, 0) for repeat in range(2) for lap in range(4)]
    assert len(findings.segments) == 2 * 2 * 4


def test_chats_are_not_held_again_when_they_took_long_enough(tmp_path: Path) -> None:
    plan = plan_of("none,fixed:4", loads=(Load(concurrency=2),), segments=4, repeats=2)

    findings = ran(plan, Watched(FakeLauncher()), tmp_path)

    assert {segment.lap for segment in findings.segments} == {0}


def test_an_open_loop_is_held_in_one_piece() -> None:
    plan = plan_of("none", segments=8, chats=CHATS * 20)

    assert plan.parts(Load(rate=2.0)) == [plan.chats]
    assert len(plan.parts(Load(concurrency=1))) == 8
    # Each of two at once holds at least four chats of a part.
    assert [len(part) for part in plan.parts(Load(concurrency=2))] == [8] * 5
    assert len(plan.parts(Load(concurrency=32))) == 1


def test_half_a_lap_is_no_measurement(tmp_path: Path) -> None:
    chats = tuple(Chat(chat_id=str(n), category="c", turns=("one", "two")) for n in range(4))
    plan = plan_of("fixed:4,none", chats=chats, loads=(Load(concurrency=1),), segments=4, repeats=1)
    watched = Watched(FakeLauncher(), kill=("fixed:4", 0))

    findings = ran(plan, watched, tmp_path)

    assert list(findings.failures) == ["fixed:4"]
    assert [segment.part for segment in findings.segments] == [0, 1, 2, 3]
    assert {segment.arm for segment in findings.segments} == {"none"}


def test_the_warm_up_is_not_measured(tmp_path: Path) -> None:
    watched = Watched(FakeLauncher())
    findings = ran(plan_of("none", repeats=1), watched, tmp_path)

    assert len(watched.launcher.started[0].fake.requests) == 2 + 2 * 4
    assert sum(len(segment.turns) for segment in findings.segments) == 2 * 4


def test_a_server_that_dies_fails_its_arm_and_the_rest_goes_on(tmp_path: Path) -> None:
    watched = Watched(FakeLauncher(), kill=("fixed:4", 1))

    findings = ran(plan_of("fixed:4,paper:2+2,none"), watched, tmp_path)

    assert watched.failed == ["fixed:4"]
    assert "died with exit code -9" in str(findings.failures["fixed:4"])
    assert "last words" in str(findings.failures["fixed:4"])
    finished = [(segment.arm, segment.repeat) for segment in findings.segments]
    assert finished.count(("fixed:4", 0)) == 2
    assert ("fixed:4", 1) not in finished
    assert len([arm for arm, _ in finished if arm == "paper:2+2"]) == 6
    assert len([arm for arm, _ in finished if arm == "none"]) == 6


def test_a_server_that_does_not_start_fails_its_arm(tmp_path: Path) -> None:
    watched = Watched(FakeLauncher(unhealthy=("NGRAM",)))

    findings = ran(plan_of("none,sglang:NGRAM"), watched, tmp_path)

    assert list(findings.failures) == ["sglang:NGRAM"]
    assert {segment.arm for segment in findings.segments} == {"none"}


def test_a_server_that_answers_nothing_fails_its_arm(tmp_path: Path) -> None:
    watched = Watched(FakeLauncher(script=Script(status=500)))

    findings = ran(plan_of("none"), watched, tmp_path)

    assert "no request was answered; the first: HTTP 500" in str(findings.failures["none"])


def test_an_interruption_keeps_what_is_finished_and_no_server(tmp_path: Path) -> None:
    watched = Watched(FakeLauncher(), interrupt=("none", 1))
    findings = Findings()
    plan = plan_of("none,fixed:4")
    fleet: Fleet[Launched] = Fleet(
        watched.launcher, plan.arms, common_args=[], directory=tmp_path, at_most=3,
        switch=lambda *_: None,
    )  # fmt: skip

    with pytest.raises(KeyboardInterrupt), fleet:
        run(plan, fleet, findings, watched)

    assert {segment.repeat for segment in findings.segments} >= {0}
    assert len(findings.segments) >= 4
    assert watched.launcher.alive == []
