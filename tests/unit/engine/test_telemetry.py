"""From steps to records: what is counted, for whom, and on which side of the copy to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sglang_tetris.core.acceptance import accept
from sglang_tetris.core.calibration import Calibration, score
from sglang_tetris.core.layout import lay_out
from sglang_tetris.core.selection import select
from sglang_tetris.engine.drafting import DraftRequests
from sglang_tetris.engine.history import TokenHistory
from sglang_tetris.engine.telemetry import PhaseTimer, StepReport, Telemetry
from sglang_tetris.engine.tracing import Tracer
from sglang_tetris.loops import GRAM
from sglang_tetris.metrics import StepRecord
from sglang_tetris.trace import TraceHeader, TraceReader
from tests.builders import chain, forest, tree

DEPTH = 3


class Req:
    """A request, to be told apart."""


@dataclass
class Commit:
    """What SGLang hands back of one request."""

    token_ids: tuple[int, ...]


@dataclass
class Recorder:
    """Keeps the records."""

    steps: list[StepRecord] = field(default_factory=list)

    def add(self, step: StepRecord) -> None:
        self.steps.append(step)


def reported_step(telemetry: Telemetry) -> StepReport:
    """Run the pure part of one step of two requests; return its report, still on the device.

    The first has a tree of 0 over 1 and 2, of which 0 and 2 are verified and right; the second
    a chain of two, of which nothing is verified.
    """
    trees = forest(
        tree([-1, 0, 0], token_ids=[10, 11, 12], logprobs=[-0.1, -2.0, -0.2]),
        chain(2, token_ids=[20, 21], logprobs=[-3.0, -3.0]),
    )
    scores = score(trees, Calibration.identity(1, DEPTH))
    layout = lay_out(trees, select(scores, trees, 2), torch.tensor([1, 2]), DEPTH)
    acceptance = accept(layout, torch.tensor([10, 12, 99, 98]))
    output = SimpleNamespace(auxiliary_device_output=None, next_token_logits=torch.zeros(4, 5))
    timer = PhaseTimer()
    with timer.phase("verify"):
        pass
    telemetry.report_step(
        DraftRequests(
            batch=None,
            history=TokenHistory(2, 8, 100, "cpu"),
            req_pool_indices=torch.arange(2),
            seq_lens=torch.tensor([30, 40]),
            windows=torch.zeros(2, DEPTH + 1, dtype=torch.int64),
            max_lens=[DEPTH, DEPTH],
            stop_token_ids=[frozenset(), frozenset()],
        ),
        trees=trees,
        scores=scores,
        capacity=2,
        layout=layout,
        acceptance=acceptance,
        timer=timer,
        logits_output=output,
    )
    report: StepReport = output.auxiliary_device_output
    return report


def consume(report: StepReport, reqs: Sequence[Req], commits: Sequence[Commit | None]) -> None:
    """Do as SGLang does with what a step left on its result."""
    host = report.copy_to_host(torch.Tensor.clone)
    host.consume(SimpleNamespace(reqs=reqs), commits)


def test_a_step_is_counted_when_its_tokens_are_on_the_host() -> None:
    recorder = Recorder()
    telemetry = Telemetry([recorder], None)

    report = reported_step(telemetry)
    assert recorder.steps == []
    consume(report, [Req(), Req()], [Commit((10, 12, 98)), Commit((98,))])

    (step,) = recorder.steps
    assert step.time_s > 0
    assert step.seconds.keys() == {"verify"}
    assert step == StepRecord(
        time_s=step.time_s,
        num_requests=2,
        num_drafted=5,
        capacity=2,
        num_selected=2,
        num_correct_drafts=2,
        num_emitted=4,
        num_rows=4,
        num_requests_outside_loops=2,
        num_emitted_outside_loops=4,
        verify_lens=[0, 1, 0, 1],
        seconds=step.seconds,
    )


def test_requests_are_counted_though_nobody_records() -> None:
    telemetry = Telemetry([], None)
    reqs = [Req(), Req()]
    assert telemetry.counts_of(reqs[0]) is None

    for _ in range(2):
        consume(reported_step(telemetry), reqs, [Commit((10, 12, 98)), Commit((98,))])

    first, second = (telemetry.counts_of(req) for req in reqs)
    assert first is not None
    assert second is not None
    assert (first.num_steps, first.num_drafted, first.num_verified, first.num_accepted) == (
        2, 6, 4, 4,
    )  # fmt: skip
    assert (second.num_steps, second.num_drafted, second.num_verified, second.num_accepted) == (
        2, 4, 0, 0,
    )  # fmt: skip


def test_a_step_after_the_end_of_an_answer_is_not_the_requests() -> None:
    """Under overlap scheduling one step too many is run, and its tokens are dropped."""
    recorder = Recorder()
    telemetry = Telemetry([recorder], None)
    reqs = [Req(), Req()]

    consume(reported_step(telemetry), reqs, [None, Commit((98,))])

    assert telemetry.counts_of(reqs[0]) is None
    (step,) = recorder.steps
    assert (step.num_requests, step.num_emitted) == (2, 4)  # what the machine did
    assert (step.num_requests_outside_loops, step.num_emitted_outside_loops) == (1, 1)


def test_steps_begun_inside_a_loop_are_told_apart() -> None:
    recorder = Recorder()
    telemetry = Telemetry([recorder], None)
    reqs = [Req(), Req()]
    output = SimpleNamespace(auxiliary_device_output=None)
    telemetry.report_prefill(SimpleNamespace(extend_num_tokens=9), PhaseTimer(), output)
    consume(output.auxiliary_device_output, reqs, [Commit((7,)), None])  # the second's is chunked

    for i in range(GRAM):
        consume(reported_step(telemetry), reqs, [Commit((7, 7, 7)), Commit((i,))])

    prefill, *steps = recorder.steps
    assert (prefill.kind, prefill.num_prefill_tokens, prefill.num_requests) == ("prefill", 9, 0)
    # The first answer: 1 token, then 3 a step. Its 13th and later tokens repeat a gram twice seen.
    outside = [step.num_requests_outside_loops for step in steps]
    first_places = [1 + 3 * i for i in range(GRAM)]
    assert outside == [1 + (place < GRAM + 1) for place in first_places]
    emitted = [step.num_emitted_outside_loops for step in steps]
    assert emitted == [1 + 3 * (place < GRAM + 1) for place in first_places]


def test_a_request_that_is_gone_is_forgotten() -> None:
    telemetry = Telemetry([Recorder()], None)
    reqs = [Req(), Req()]
    consume(reported_step(telemetry), reqs, [Commit((10,)), Commit((98,))])
    assert len(telemetry._requests) == 2

    reqs.clear()

    assert len(telemetry._requests) == 0


def test_a_trace_says_what_was_offered_chosen_and_right(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    header = TraceHeader(model="m", draft_model=None, settings={}, version="0")
    tracer = Tracer(path, header)
    telemetry = Telemetry([], tracer)
    reqs = [Req(), Req()]

    for _ in range(2):
        consume(reported_step(telemetry), reqs, [Commit((10, 12, 98)), Commit((98,))])
    tracer.close()

    with TraceReader(path) as trace:
        first, second = trace
    assert (first.capacity, first.num_rows, list(first.seconds)) == (2, 4, ["verify"])
    tree_of_first, chain_of_second = first.requests
    assert tree_of_first.request != chain_of_second.request
    assert [r.request for r in first.requests] == [r.request for r in second.requests]
    assert (tree_of_first.seq_len, chain_of_second.seq_len) == (30, 40)
    assert tree_of_first.parents == [-1, 0, 0]
    assert tree_of_first.depths == [1, 2, 2]
    assert tree_of_first.path_logprobs == pytest.approx([-0.1, -2.1, -0.3])
    assert tree_of_first.scores == pytest.approx([0.905, 0.122, 0.741], abs=1e-3)
    assert tree_of_first.selected == [0, 2]
    assert tree_of_first.accepted == [0, 2]
    assert tree_of_first.accept_length == 3
    assert len(chain_of_second.parents) == 2  # its padding is left out
    assert chain_of_second.selected == chain_of_second.accepted == []
    assert chain_of_second.accept_length == 1
