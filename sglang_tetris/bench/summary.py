"""From measured segments to the numbers of the result.

Latencies are pooled over the repeats before a percentile is taken. Rates are ratios of sums over
all steps of all repeats (``metrics.StepTotals``), never means of rates.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby

import numpy as np

from sglang_tetris.bench.arms import Arm
from sglang_tetris.bench.intervals import Pair, geometric_mean, paired_ratio
from sglang_tetris.bench.load import Load
from sglang_tetris.bench.run import Findings, Plan, Segment
from sglang_tetris.bench.schema import ArmResult, Percentiles, Piece, Ratio, TimePoint
from sglang_tetris.metrics import StepRecord, StepTotals

_MOST_MESSAGES = 3
_MOST_POINTS = 120  # of a series over time
_COUNTS = (
    "num_steps",
    "num_requests",
    "num_drafted",
    "capacity",
    "num_selected",
    "num_correct_drafts",
    "num_emitted",
    "num_rows",
)


def summarised(plan: Plan, findings: Findings) -> list[ArmResult]:
    """Return the result of every arm under every load that has one, in the order of the plan.

    An arm that failed before it had any has one without numbers, under the first load.
    """
    results = []
    for arm in plan.arms:
        error = findings.failures.get(arm.name)
        failure = None if error is None else str(error)
        of_arm = [segment for segment in findings.segments if segment.arm == arm.name]
        measured = [
            _arm_result(arm, load, [s for s in of_arm if s.load == load], failure)
            for load in plan.loads
            if any(segment.load == load for segment in of_arm)
        ]
        if not measured and failure is not None:
            measured = [_arm_result(arm, plan.loads[0], [], failure)]
        results += measured
    return results


def ratios(plan: Plan, results: Sequence[ArmResult]) -> list[Ratio]:
    """Return every arm's throughput over the baseline's and over the best fixed arm's, per load.

    The baseline is the arm without speculation, or the first where there is none. The best fixed
    arm has the highest median throughput under this load.
    """
    baseline = next((arm for arm in plan.arms if arm.server.kind == "plain"), plan.arms[0]).name
    fixed = {arm.name for arm in plan.arms if arm.is_fixed}
    found = []
    for load in plan.loads:
        of_load = [r for r in results if _load_of(r) == load and r.output_tokens_per_s]
        found += _over(baseline, of_load)
        best = max(
            (result for result in of_load if result.arm in fixed),
            key=lambda result: result.output_tokens_per_s_median or 0.0,
            default=None,
        )
        if best is not None and best.arm != baseline:
            found += _over(best.arm, [r for r in of_load if r.arm != baseline])
    return found


def _over(baseline: str, results: Sequence[ArmResult]) -> list[Ratio]:
    base = next((result for result in results if result.arm == baseline), None)
    if base is None:
        return []
    found = []
    for result in results:
        pairs = _paired(result.pieces, base.pieces)
        if result is base or not pairs:
            continue
        interval = paired_ratio(pairs)
        found.append(
            Ratio(
                arm=result.arm,
                baseline=baseline,
                concurrency=result.concurrency,
                rate=result.rate,
                ratio=interval.estimate,
                low=interval.low,
                high=interval.high,
            )
        )
    return found


def _paired(ours: Sequence[Piece], theirs: Sequence[Piece]) -> list[Pair]:
    """Return the pieces that both arms measured."""
    of_base = {(piece.repeat, piece.lap, piece.part): piece for piece in theirs}
    return [
        Pair(
            part=piece.part,
            our_tokens=piece.num_output_tokens,
            our_seconds=piece.seconds,
            their_tokens=their.num_output_tokens,
            their_seconds=their.seconds,
        )
        for piece in ours
        if (their := of_base.get((piece.repeat, piece.lap, piece.part))) is not None
    ]


def _arm_result(
    arm: Arm, load: Load, segments: Sequence[Segment], failure: str | None
) -> ArmResult:
    turns = [turn for segment in segments for turn in segment.turns]
    answered = [turn.reply for turn in turns if turn.reply.error is None]
    messages = [turn.reply.error for turn in turns if turn.reply.error is not None]
    pieces = [_piece(segment) for segment in segments]
    of_repeat: dict[int, list[Piece]] = defaultdict(list)
    for piece in pieces:
        of_repeat[piece.repeat].append(piece)
    seconds = [sum(piece.seconds for piece in of) for of in of_repeat.values()]
    throughputs = [
        sum(piece.num_output_tokens for piece in of) / spent
        for of, spent in zip(of_repeat.values(), seconds, strict=True)
    ]
    interval = geometric_mean(throughputs) if throughputs else None
    num_prompt = sum(reply.num_prompt_tokens for reply in answered)
    num_cached = sum(reply.num_cached_tokens for reply in answered)
    totals = StepTotals()
    for segment in segments:
        for step in segment.steps:
            totals.add(step)
    by_category = {
        category: _said_by_server(segments, category).accept_length
        for category in sorted({turn.category for turn in turns})
        if _said_by_server(segments, category).num_requests
    }
    return ArmResult(
        arm=arm.name,
        concurrency=load.concurrency,
        rate=load.rate,
        output_tokens_per_s=throughputs,
        output_tokens_per_s_median=statistics.median(throughputs) if throughputs else None,
        output_tokens_per_s_low=interval.low if interval else None,
        output_tokens_per_s_high=interval.high if interval else None,
        ttft_s=_percentiles(reply.ttft_s for reply in answered if reply.ttft_s is not None),
        itl_s=_percentiles(gap for reply in answered for gap in reply.token_gaps_s()),
        e2e_s=_percentiles(reply.e2e_s for reply in answered),
        **_rates(totals, _said_by_server(segments, None)),
        cached_token_share=num_cached / num_prompt if num_prompt else None,
        phase_seconds=dict(totals.seconds),
        errors=len(messages),
        error_messages=list(dict.fromkeys(messages))[:_MOST_MESSAGES],
        failure=failure,
        repeats=list(of_repeat),
        num_turns=len(turns),
        num_prompt_tokens=num_prompt,
        num_cached_tokens=num_cached,
        num_output_tokens=sum(segment.num_output_tokens for segment in segments),
        seconds=seconds,
        pieces=pieces,
        step_counts={name: getattr(totals, name) for name in _COUNTS} if totals.num_steps else {},
        accept_length_by_category=by_category,
        verify_lens=list(totals.verify_lens),
        over_time=_over_time([s.steps for s in segments if (s.repeat, s.lap) == (0, 0)]),
    )


def _piece(segment: Segment) -> Piece:
    return Piece(
        repeat=segment.repeat,
        lap=segment.lap,
        part=segment.part,
        seconds=segment.seconds,
        num_output_tokens=segment.num_output_tokens,
    )


def _rates(totals: StepTotals, said: StepTotals) -> dict[str, float | None]:
    """Return the rates of a server with a step log; of another one only what its replies say."""
    if not totals.num_steps:
        return {
            "accept_length": said.accept_length if said.num_requests else None,
            "accept_length_outside_loops": None,
            "verify_accept_rate": None,
            "draft_accept_rate": None,
            "target_efficiency": None,
            "rows_per_step": None,
        }
    has_outside = totals.num_requests_outside_loops > 0
    return {
        "accept_length": totals.accept_length,
        "accept_length_outside_loops": totals.accept_length_outside_loops if has_outside else None,
        "verify_accept_rate": totals.verify_accept_rate if totals.num_selected else None,
        "draft_accept_rate": totals.draft_accept_rate if totals.num_drafted else None,
        "target_efficiency": totals.target_efficiency,
        "rows_per_step": totals.rows_per_step,
    }


def _said_by_server(segments: Sequence[Segment], category: str | None) -> StepTotals:
    """Return what the replies say about speculation; steps do not know whose chat they serve."""
    said = StepTotals()
    for segment in segments:
        for turn in segment.turns:
            if category in (None, turn.category):
                said.num_requests += turn.reply.num_verify_steps
                said.num_correct_drafts += turn.reply.num_correct_drafts
    said.num_emitted = said.num_requests + said.num_correct_drafts  # and one bonus each
    return said


def _percentiles(values: Iterable[float]) -> Percentiles:
    pooled = list(values)
    if not pooled:
        return Percentiles(p50=None, p90=None, p99=None)
    p50, p90, p99 = (float(value) for value in np.percentile(pooled, (50, 90, 99)))
    return Percentiles(p50=p50, p90=p90, p99=p99)


def _over_time(segments: Sequence[Sequence[StepRecord]]) -> list[TimePoint]:
    """Return the means over equally many consecutive decode steps, few enough to draw.

    While the other arms had their turns this one's clock stood still.
    """
    timed: list[tuple[float, StepRecord]] = []
    for steps in segments:
        decodes = [step for step in steps if step.kind == "decode"]
        begun_s = timed[-1][0] if timed else 0.0
        timed += [(begun_s + step.time_s - decodes[0].time_s, step) for step in decodes]
    size = max(1, -(-len(timed) // _MOST_POINTS))
    points = []
    for _, numbered in groupby(enumerate(timed), key=lambda pair: pair[0] // size):
        piece = [pair for _, pair in numbered]
        points.append(
            TimePoint(
                time_s=statistics.fmean(time_s for time_s, _ in piece),
                capacity=statistics.fmean(step.capacity for _, step in piece),
                rows=statistics.fmean(step.num_rows for _, step in piece),
            )
        )
    return points


def _load_of(result: ArmResult) -> Load:
    return Load(concurrency=result.concurrency, rate=result.rate)
