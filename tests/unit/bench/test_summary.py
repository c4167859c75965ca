"""The numbers of a result, against ones worked out by hand and against the slow definition."""

from __future__ import annotations

import math
import random

import pytest

from sglang_tetris.bench.load import Load
from sglang_tetris.bench.run import Findings
from sglang_tetris.bench.schema import ArmResult
from sglang_tetris.bench.summary import _over_time, _percentiles, ratios, summarised
from sglang_tetris.errors import TetrisError
from sglang_tetris.metrics import StepRecord
from tests.unit.bench.results import (
    ARMS,
    example,
    findings_of,
    plan_of,
    reply_of,
    segment_of,
    step_of,
)


def one(findings: Findings, words: str = "lookup:fixed:4") -> ArmResult:
    """Return the only result of some findings."""
    (result,) = summarised(plan_of(words), findings)
    return result


def test_an_arm_by_hand() -> None:
    result = one(Findings(segments=[segment_of("lookup:fixed:4", 0)]))

    assert result.output_tokens_per_s == [12 / 4]
    assert result.num_output_tokens == 12
    assert result.seconds == [4.0]
    # To the first chunk: 0.5, 0.5, 1. Between tokens: 0.5, 0.5, 0.5; 0.5, 0.5, 0.5; 1, 1.
    assert result.ttft_s.p50 == 0.5
    assert result.ttft_s.p99 == pytest.approx(0.99)
    assert (result.itl_s.p50, result.itl_s.p90) == (0.5, 1.0)
    assert result.e2e_s.p50 == 2.0
    assert result.cached_token_share == 15 / 60
    assert (result.errors, result.failure) == (0, None)
    # Two steps of 2 requests, 6 drafted, 3 verified, 1 right, 3 emitted, 5 and 6 rows.
    assert result.accept_length == 6 / 4
    assert result.accept_length_outside_loops == 2 / 2
    assert result.verify_accept_rate == 2 / 6
    assert result.draft_accept_rate == 2 / 12
    assert result.target_efficiency == 6 / 11
    assert result.rows_per_step == 11 / 2
    assert result.phase_seconds == {"draft": 1.0, "verify": 4.0, "prefill": 1.5}
    assert result.verify_lens == [0, 2, 0, 0, 2]
    # The replies of a category say 4 steps and 2 right drafts each.
    assert result.accept_length_by_category == {"</script><b>": 6 / 4, "maths": 12 / 8}
    assert [point.time_s for point in result.over_time] == [0.0, 1.0]
    assert [point.rows for point in result.over_time] == [5.0, 6.0]
    assert result.step_counts["num_rows"] == 11


def test_repeats_are_pooled_and_throughputs_kept_apart() -> None:
    result = one(Findings(segments=[segment_of("lookup:fixed:4", n, n + 1.0) for n in range(3)]))

    assert result.output_tokens_per_s == [3.0, 1.5, 1.0]
    assert result.output_tokens_per_s_median == 1.5
    assert result.num_turns == 9
    assert result.step_counts["num_steps"] == 6
    assert result.verify_lens == [0, 6, 0, 0, 6]
    assert result.output_tokens_per_s_low is not None
    assert result.output_tokens_per_s_low < 1.5


def test_a_repeat_s_throughput_is_that_of_its_pieces_together() -> None:
    plan = plan_of("none,lookup:fixed:4")
    segments = [
        segment_of(arm, repeat, slow * factor, lap=lap, part=part)
        for repeat in range(2)
        for lap, part, slow in ((0, 0, 1.0), (0, 1, 2.0), (1, 0, 3.0), (1, 1, 2.0))
        for arm, factor in (("none", 2.0), ("lookup:fixed:4", 1.0))
    ]

    plain, ours = summarised(plan, Findings(segments=segments))

    assert ours.output_tokens_per_s == [4 * 12 / (4 * 8)] * 2
    assert ours.seconds == [32.0, 32.0]
    assert ours.repeats == [0, 1]
    assert [(p.repeat, p.lap, p.part) for p in ours.pieces[:4]] == [
        (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1),
    ]  # fmt: skip
    assert sum(piece.num_output_tokens for piece in ours.pieces) == ours.num_output_tokens
    (ratio,) = ratios(plan, [plain, ours])
    assert (ratio.ratio, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    # Both parts of the first lap, one after the other: two steps each.
    assert [point.time_s for point in ours.over_time] == [0.0, 1.0, 1.0, 2.0]


def test_a_server_without_a_step_log_has_what_its_replies_say() -> None:
    segments = [segment_of("sglang:NGRAM", 0, has_steps=False)]

    result = one(Findings(segments=segments), "sglang:NGRAM")

    assert result.accept_length == 18 / 12
    assert result.rows_per_step is None
    assert result.phase_seconds == {}
    assert result.step_counts == {}


def test_a_server_without_speculation_has_no_accept_length() -> None:
    segment = segment_of("none", 0, has_steps=False)
    for turn in segment.turns:
        turn.reply.num_verify_steps = turn.reply.num_correct_drafts = 0

    result = one(Findings(segments=[segment]), "none")

    assert result.accept_length is None
    assert result.accept_length_by_category == {}


def test_a_failed_turn_is_an_error_and_no_latency() -> None:
    segment = segment_of("none", 0, has_steps=False)
    bad = reply_of(100.0, [150.0], [2], error="HTTP 500")
    segment.turns[1].reply.error = "HTTP 500"
    segment.turns[2].reply.error = bad.error

    result = one(Findings(segments=[segment]), "none")

    assert result.errors == 2
    assert result.error_messages == ["HTTP 500"]
    assert result.ttft_s.p99 == 0.5
    assert result.num_prompt_tokens == 20


def test_an_arm_that_failed_at_once_is_reported_without_numbers() -> None:
    findings = Findings(
        segments=[segment_of("none", 0, has_steps=False)],
        failures={"lookup:fixed:4": TetrisError("died\nlast words")},
    )

    plain, failed = summarised(plan_of("none,lookup:fixed:4"), findings)

    assert plain.failure is None
    assert failed.failure == "died\nlast words"
    assert failed.output_tokens_per_s == []
    assert failed.output_tokens_per_s_median is None
    assert failed.ttft_s.p50 is None
    assert ratios(plan_of("none,lookup:fixed:4"), [plain, failed]) == []


def test_ratios_are_to_the_plain_arm_and_to_the_best_fixed_one() -> None:
    result = example()

    found = {(r.arm, r.baseline, r.concurrency): r for r in result.ratios}
    assert found.keys() == {
        (arm, baseline, concurrency)
        for concurrency in (1, 8)
        for arm, baseline in [
            ("lookup:fixed:4", "none"),
            ("lookup:paper:2+2", "none"),
            ("lookup:paper:2+2", "lookup:fixed:4"),
        ]
    }
    assert found["lookup:fixed:4", "none", 1].ratio == pytest.approx(2.0)
    by_hand = (1.0 + 1.1 + 1.2) / (0.9 + 1.0 + 1.1)
    assert found["lookup:paper:2+2", "lookup:fixed:4", 8].ratio == pytest.approx(by_hand)


def test_the_best_fixed_arm_is_that_of_each_load() -> None:
    plan = plan_of("none,fixed:2,fixed:4", loads=[Load(concurrency=1), Load(rate=2.0)])
    low, high = plan.loads
    findings = Findings()
    for load, slow in ((low, (1.0, 2.0)), (high, (2.0, 1.0))):
        for arm, slowness in zip(("none", "fixed:2", "fixed:4"), (4.0, *slow), strict=True):
            findings.segments.append(segment_of(arm, 0, slowness, load, has_steps=False))

    found = ratios(plan, summarised(plan, findings))

    best = {(r.concurrency, r.rate): r.baseline for r in found if r.baseline != "none"}
    assert best == {(1, None): "fixed:2", (None, 2.0): "fixed:4"}


def test_only_repeats_that_both_finished_are_paired() -> None:
    plan = plan_of("none,fixed:4")
    findings = findings_of(plan, {"none": [2.0, 2.0, 2.0], "fixed:4": [1.0]})

    (ratio,) = ratios(plan, summarised(plan, findings))

    assert ratio.ratio == pytest.approx(2.0)
    assert ratio.low is None


def test_without_a_plain_arm_the_first_is_the_baseline() -> None:
    plan = plan_of("url:http://a,url:http://b")
    findings = findings_of(plan, {"url:http://b": [1.0], "url:http://a": [2.0]})

    (ratio,) = ratios(plan, summarised(plan, findings))

    assert (ratio.arm, ratio.baseline) == ("url:http://b", "url:http://a")


def test_results_stand_in_the_order_of_the_plan() -> None:
    result = example()

    assert [(arm.arm, arm.concurrency) for arm in result.arms] == [
        (arm, concurrency) for arm in ARMS.split(",") for concurrency in (1, 8)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_percentiles_and_rates_agree_with_the_slow_definition(seed: int) -> None:
    draw = random.Random(seed)
    values = [draw.random() for _ in range(draw.randint(1, 40))]
    steps = [step_of(t, num_rows=draw.randint(2, 9)) for t in range(draw.randint(1, 9))]

    found = _percentiles(values)

    assert found.p50 == pytest.approx(slow_percentile(values, 0.5))
    assert found.p90 == pytest.approx(slow_percentile(values, 0.9))
    assert found.p99 == pytest.approx(slow_percentile(values, 0.99))
    segment = segment_of("fixed:4", 0)
    object.__setattr__(segment, "steps", tuple(steps))
    result = one(Findings(segments=[segment]), "fixed:4")
    assert result.rows_per_step == sum(step.num_rows for step in steps) / len(steps)
    assert result.target_efficiency == 3 * len(steps) / sum(step.num_rows for step in steps)


def slow_percentile(values: list[float], share: float) -> float:
    """Return the value that many of all lie below, between neighbours in proportion."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def test_a_long_series_is_thinned_without_changing_its_mean() -> None:
    steps = [StepRecord(time_s=float(n), num_rows=n % 7, capacity=2) for n in range(1200)]

    points = _over_time([steps[:500], steps[500:]])

    assert len(points) == 120
    mean = sum(point.rows for point in points) / len(points)
    assert mean == pytest.approx(sum(step.num_rows for step in steps) / 1200)
    assert _over_time([[StepRecord(kind="prefill")]]) == []
    assert _over_time([]) == []
