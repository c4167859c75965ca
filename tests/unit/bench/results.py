"""Measured segments and results written by hand."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_tetris.bench import summary
from sglang_tetris.bench.arms import parse_arms
from sglang_tetris.bench.client import Reply
from sglang_tetris.bench.environment import environment
from sglang_tetris.bench.load import Load, Manner, Turn
from sglang_tetris.bench.run import Findings, Plan, Segment
from sglang_tetris.bench.schema import BenchResult, Protocol, Workload
from sglang_tetris.bench.workload import Chat
from sglang_tetris.metrics import StepRecord

ARMS = "none,lookup:fixed:4,lookup:paper:2+2"


def plan_of(
    words: str = ARMS, loads: Sequence[Load] = (Load(concurrency=1),), repeats: int = 3
) -> Plan:
    """Return a plan of two chats."""
    return Plan(
        arms=tuple(parse_arms(words, draft_model=None)),
        chats=(
            Chat(chat_id="a", category="maths", turns=("one", "two")),
            Chat(chat_id="b", category="</script><b>", turns=("one",)),
        ),
        loads=tuple(loads),
        manner=Manner(seed=0),
        max_tokens=8,
        temperature=0.0,
        timeout_s=10.0,
        repeats=repeats,
        segments=1,
        enough_s=0.0,
        num_warm_up_chats=0,
        servers_at_once=3,
    )


def reply_of(
    sent_s: float, times_s: Sequence[float], tokens: Sequence[int], error: str | None = None
) -> Reply:
    """Return a reply whose chunks came at these times."""
    return Reply(
        sent_s=sent_s,
        end_s=times_s[-1],
        chunk_times_s=list(times_s),
        chunk_tokens=list(tokens),
        num_prompt_tokens=20,
        num_cached_tokens=5,
        num_output_tokens=tokens[-1],
        num_verify_steps=4,
        num_correct_drafts=2,
        error=error,
    )


def step_of(time_s: float, num_rows: int = 5) -> StepRecord:
    """Return a step of two requests: three drafts of six verified, one of them right."""
    return StepRecord(
        time_s=time_s,
        num_requests=2,
        num_drafted=6,
        capacity=4,
        num_selected=3,
        num_correct_drafts=1,
        num_emitted=3,
        num_rows=num_rows,
        num_requests_outside_loops=1,
        num_emitted_outside_loops=1,
        verify_lens=[0, 1, 0, 0, 1],
        seconds={"draft": 0.5, "verify": 2.0},
    )


def segment_of(
    arm: str,
    repeat: int,
    slowness: float = 1.0,
    load: Load | None = None,
    *,
    has_steps: bool = True,
    lap: int = 0,
    part: int = 0,
) -> Segment:
    """Return a segment of three turns: 12 tokens in ``4 * slowness`` seconds."""
    replies = [
        reply_of(100.0, [100 + s * slowness for s in (0.5, 1.0, 2.0)], [1, 2, 4]),
        reply_of(100 + 2 * slowness, [100 + s * slowness for s in (2.5, 4.0)], [1, 4]),
        reply_of(100.0, [100 + s * slowness for s in (1.0, 3.0)], [2, 4]),
    ]
    places = (("a", "maths", 0), ("a", "maths", 1), ("b", "</script><b>", 0))
    return Segment(
        arm=arm,
        load=load or Load(concurrency=1),
        repeat=repeat,
        lap=lap,
        part=part,
        turns=tuple(
            Turn(chat_id=chat_id, category=category, index=index, reply=reply)
            for (chat_id, category, index), reply in zip(places, replies, strict=True)
        ),
        steps=(
            StepRecord(time_s=9.0, kind="prefill", num_prefill_tokens=30, seconds={"prefill": 1.5}),
            step_of(10.0),
            step_of(11.0, num_rows=6),
        )
        if has_steps
        else (),
    )


def result_of(plan: Plan, findings: Findings, *, seed: int = 0) -> BenchResult:
    """Return the result of some findings."""
    arms = summary.summarised(plan, findings)
    return BenchResult(
        is_complete=True,
        environment=environment(threads=2, device="cpu", dtype="bfloat16"),
        workload=Workload(
            dataset="data",
            fingerprint="f",
            num_chats=2,
            num_turns=3,
            model="m",
            max_tokens=8,
            temperature=0.0,
            seed=seed,
            think_time_s=0.0,
            system_prompt=None,
        ),
        protocol=Protocol(
            concurrency=[1], rate=[], repeats=plan.repeats, segments=1, enough_s=0.0, warmup=0
        ),
        arms=arms,
        ratios=summary.ratios(plan, arms),
    )


def findings_of(plan: Plan, slowness: dict[str, list[float]]) -> Findings:
    """Return findings with one segment for each load, arm and given slowness."""
    return Findings(
        segments=[
            segment_of(arm, repeat, slow, load, has_steps=arm != "none")
            for load in plan.loads
            for arm, of_arm in slowness.items()
            for repeat, slow in enumerate(of_arm)
        ]
    )


def example(loads: Sequence[Load] = (Load(concurrency=1), Load(concurrency=8))) -> BenchResult:
    """Return a result with numbers in every place."""
    plan = plan_of(loads=loads)
    slowness = {
        "none": [2.0, 2.2, 2.4],
        "lookup:fixed:4": [1.0, 1.1, 1.2],
        "lookup:paper:2+2": [0.9, 1.0, 1.1],
    }
    return result_of(plan, findings_of(plan, slowness))
