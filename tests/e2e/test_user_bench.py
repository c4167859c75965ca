"""The benchmark with real servers, small: its result adds up, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from sglang_tetris.bench import summary
from sglang_tetris.bench.arms import parse_arms
from sglang_tetris.bench.fleet import Fleet
from sglang_tetris.bench.load import Load, Manner
from sglang_tetris.bench.run import Findings, Plan, Segment, run
from sglang_tetris.bench.schema import BenchResult, read_result
from sglang_tetris.bench.workload import EMBEDDED, load_chats
from sglang_tetris.cli import launch
from sglang_tetris.cli.bench_progress import Progress
from sglang_tetris.cli.main import main
from sglang_tetris.control import switch
from sglang_tetris.engine.prometheus import SECONDS
from sglang_tetris.models.demo_target import demo_target
from tests.support.scrape import counters
from tests.support.servers import Servers

pytestmark = [pytest.mark.sglang, pytest.mark.e2e, pytest.mark.timeout(600)]

SMALL = (
    "--concurrency",
    "2",
    "--limit",
    "3",
    "--max-turns",
    "2",
    "--max-tokens",
    "24",
    "--segments",
    "2",
)
BENCH = (sys.executable, "-m", "sglang_tetris.cli.main", "bench")


def test_a_small_run_adds_up(
    servers: Servers, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    servers.close()  # to have the memory back
    files = ("--json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html"))

    arms = "none,lookup:fixed:4,lookup:paper:2+2"
    assert main(["bench", "--arms", arms, *SMALL, "--repeats", "2", *files]) == 0

    result = read_result(tmp_path / "r.json")
    last_line = capfd.readouterr().out.splitlines()[-1]
    assert BenchResult.model_validate_json(last_line) == result
    assert json.loads(last_line) == embedded(tmp_path / "r.html")
    plain, *ours = result.arms
    assert len({arm.num_output_tokens for arm in result.arms}) == 1  # greedy: the same text
    assert len({arm.num_prompt_tokens for arm in result.arms}) == 1
    # Second turns find the first in the cache. Two chats that arrive together may miss the part
    # of the template that they share, so the counts need not be equal.
    assert all(0.3 < (arm.cached_token_share or 0) < 0.8 for arm in result.arms)
    assert plain.accept_length is None
    for arm in ours:
        check_steps(arm.step_counts, arm.num_output_tokens, arm.num_turns)
        assert sum(arm.verify_lens) == arm.step_counts["num_requests"]
        rows = sum(length * count for length, count in enumerate(arm.verify_lens))
        assert rows == arm.step_counts["num_rows"]
        assert {"draft", "verify", "commit", "prefill"} <= arm.phase_seconds.keys()
        assert sum(arm.phase_seconds.values()) <= sum(arm.seconds)
    assert {(ratio.arm, ratio.baseline) for ratio in result.ratios} == {
        ("lookup:fixed:4", "none"),
        ("lookup:paper:2+2", "none"),
        ("lookup:paper:2+2", "lookup:fixed:4"),
    }
    assert {arm.errors for arm in result.arms} == {0}


def check_steps(counts: dict[str, int], num_output_tokens: int, num_turns: int) -> None:
    """Compare the steps' own counts with what the answers' usage says.

    A turn's first token comes from its prefill; a step may emit beyond the length that was asked
    for, up to the drafts it verified.
    """
    from_steps = num_output_tokens - num_turns
    assert from_steps <= counts["num_emitted"] <= from_steps + 4 * num_turns
    assert counts["num_emitted"] == counts["num_correct_drafts"] + counts["num_requests"]
    assert counts["num_rows"] == counts["num_selected"] + counts["num_requests"]


def embedded(page: Path) -> object:
    """Return the result inside a page."""
    _, _, rest = page.read_text().partition('<script type="application/json" id="result">')
    return json.loads(rest.partition("</script>")[0])


class Scraping(Progress):
    """Notes what ``/metrics`` says while the run goes on."""

    def __init__(self, plan: Plan, fleet: Fleet[launch.Server]) -> None:
        super().__init__(plan)
        self._arm, self._fleet = plan.arms[0], fleet
        self.scraped: list[dict[tuple[str, str | None], float]] = []

    def segment_starts(self, arm: str, load: Load, repeat: int, num_turns: int) -> None:
        """Scrape before the first: the server has warmed up and answered for its health."""
        super().segment_starts(arm, load, repeat, num_turns)
        if not self.scraped:
            self._scrape()

    def repeat_ends(self, segments: Sequence[Segment]) -> None:
        """Scrape between two repeats."""
        super().repeat_ends(segments)
        self._scrape()

    def _scrape(self) -> None:
        self.scraped.append(counters(self._fleet.get(self._arm).base_url))


def test_metrics_scraped_during_a_run_add_up_to_its_result(
    servers: Servers, tmp_path: Path
) -> None:
    servers.close()
    plan = Plan(
        arms=tuple(parse_arms("lookup:paper:2+2", draft_model=None)),
        chats=tuple(load_chats(EMBEDDED, limit=4, max_turns=2)),
        loads=(Load(concurrency=1), Load(concurrency=4)),
        manner=Manner(seed=0),
        max_tokens=24,
        temperature=0.0,
        timeout_s=300,
        repeats=2,
        segments=2,
        enough_s=0.0,
        num_warm_up_chats=0,  # the server counts it, the result does not
        servers_at_once=1,
    )
    findings = Findings()
    fleet = Fleet(
        launch,
        plan.arms,
        common_args=["--model-path", str(demo_target()), "--enable-metrics", "--sleep-on-idle"],
        directory=tmp_path,
        at_most=1,
        switch=switch,
    )
    with fleet:
        watcher = Scraping(plan, fleet)
        run(plan, fleet, findings, watcher)

    results = summary.summarised(plan, findings)
    assert findings.failures == {}
    assert [result.concurrency for result in results] == [1, 4]
    first, *_, last = watcher.scraped
    for count in results[0].step_counts:
        num_in_result = sum(result.step_counts[count] for result in results)
        name = count.removeprefix("num_")
        assert last[name, None] - first[name, None] == num_in_result > 0, count
    phases = {phase for result in results for phase in result.phase_seconds}
    assert {"draft", "verify", "prefill"} <= phases
    for phase in phases:
        seconds = sum(result.phase_seconds.get(phase, 0.0) for result in results)
        scraped = last[SECONDS, phase] - first.get((SECONDS, phase), 0.0)
        assert scraped == pytest.approx(seconds), phase
    steps = [scraped["steps", None] for scraped in watcher.scraped]
    assert steps == sorted(set(steps))
    assert len(steps) == 1 + 2 * 2


def test_ctrl_c_leaves_no_server_and_keeps_what_is_finished(
    servers: Servers, tmp_path: Path
) -> None:
    servers.close()
    words = ("--arms", "lookup:fixed:4", *SMALL, "--repeats", "50", "--json", tmp_path / "r.json")

    with subprocess.Popen(
        [*BENCH, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()
        assert first.startswith("repeat 1 of 50"), first
        time.sleep(0.5)
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=120)

    assert process.returncode == 130
    assert len(started) >= 3  # the server and its children
    gone, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
    assert gone
    result = read_result(tmp_path / "r.json")
    assert not result.is_complete
    assert 1 <= len(result.arms[0].repeats) < 50
    assert out.splitlines()[-1] == result.to_json()
