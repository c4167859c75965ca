"""From a step to its record, without waiting for the device.

What the host knows is taken at once. The rest rides on SGLang's result as an auxiliary output
(srt/managers/auxiliary_output.py): SGLang copies it together with the tokens and hands it back
when the tokens are in their requests, which under overlap scheduling is a step later.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from sglang.srt.managers.auxiliary_output import append_auxiliary_output

from sglang_tetris.core.acceptance import Acceptance
from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.layout import VerifyLayout
from sglang_tetris.engine.drafting import DraftRequests
from sglang_tetris.engine.tracing import StepTensors, Tracer
from sglang_tetris.loops import LoopFinder
from sglang_tetris.metrics import StepRecord, histogram


class PhaseTimer:
    """Seconds of each phase of one step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase."""
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


class Recorder(Protocol):
    """Takes the records of all steps."""

    def add(self, step: StepRecord) -> None:
        """Take one."""
        ...


@dataclass(slots=True, eq=False)
class RequestCounts:
    """Sums over the decode steps of one request whose tokens were used."""

    number: int  # counts the requests of this server
    num_steps: int = 0
    num_drafted: int = 0
    num_verified: int = 0  # draft tokens
    num_accepted: int = 0  # draft tokens
    loops: LoopFinder = field(default_factory=LoopFinder)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepReport:
    """SGLang's auxiliary output of one forward: on the device first, then on the host."""

    telemetry: Telemetry
    record: StepRecord  # as far as the host knows it
    counts: torch.Tensor | None  # [3, num_requests] int64: drafted, rows, emitted; None: prefill
    tensors: StepTensors | None  # for the trace

    def copy_to_host(self, copy: Any) -> StepReport:
        """Return the same on the host; ``copy`` does not wait."""
        return replace(
            self,
            counts=None if self.counts is None else copy(self.counts),
            tensors=None if self.tensors is None else self.tensors.map(copy),
        )

    def consume(self, batch: Any, commits: Sequence[Any]) -> None:
        """Count the step. ``commits`` are each request's new tokens, None where there are none."""
        self.telemetry.count(self, batch.reqs, commits)


class Telemetry:
    """Counts per request always, and per step for the recorders that there are."""

    def __init__(self, recorders: Sequence[Recorder], tracer: Tracer | None) -> None:
        self._recorders = list(recorders)
        self._tracer = tracer
        self._num_requests = 0
        self._requests: WeakKeyDictionary[Any, RequestCounts] = WeakKeyDictionary()

    def add_recorder(self, recorder: Recorder) -> None:
        """Hand all further records to one more."""
        self._recorders.append(recorder)

    def counts_of(self, req: Any) -> RequestCounts | None:
        """Return a request's sums so far, None before its first decode step."""
        counts = self._requests.get(req)
        return counts if counts is not None and counts.num_steps > 0 else None

    def report_prefill(self, batch: Any, timer: PhaseTimer, logits_output: Any) -> None:
        """Attach the report of a prefill to SGLang's logits output."""
        if not self._recorders:
            return
        record = StepRecord(
            time_s=time.time(),
            kind="prefill",
            num_prefill_tokens=batch.extend_num_tokens,
            seconds=timer.seconds,
        )
        self._attach(
            logits_output, StepReport(telemetry=self, record=record, counts=None, tensors=None)
        )

    def report_step(
        self,
        requests: DraftRequests,
        *,
        trees: CandidateTrees,
        scores: torch.Tensor,
        capacity: int,
        layout: VerifyLayout,
        acceptance: Acceptance,
        timer: PhaseTimer,
        logits_output: Any,
    ) -> None:
        """Attach the report of a decode step to SGLang's logits output."""
        record = StepRecord(
            time_s=time.time(),
            num_requests=requests.num_requests,
            num_drafted=trees.num_candidates,
            capacity=capacity,
            num_selected=layout.num_verify - requests.num_requests,
            num_rows=logits_output.next_token_logits.shape[0],
            seconds=timer.seconds,
        )
        num_drafted = trees.num_nodes - trees.is_padding.sum(dim=1)
        counts = torch.stack((num_drafted, layout.verify_lens, acceptance.accept_lens))
        tensors = None
        if self._tracer is not None:
            tensors = StepTensors.of(requests, trees, scores, layout, acceptance)
        self._attach(
            logits_output,
            StepReport(telemetry=self, record=record, counts=counts, tensors=tensors),
        )

    def count(self, report: StepReport, reqs: Sequence[Any], commits: Sequence[Any]) -> None:
        """Count a step whose report is on the host."""
        if report.counts is None:
            self._follow_prefill(reqs, commits)
            self._record(report.record)
            return
        drafted, rows, emitted = report.counts.tolist()
        num_outside = num_emitted_outside = 0
        numbers = []
        for req, commit, offered, verified, accepted in zip(
            reqs, commits, drafted, rows, emitted, strict=True
        ):
            counts = self._counts(req)
            numbers.append(counts.number)
            if commit is None:  # it had ended: under overlap scheduling one step too many is run
                continue
            counts.num_steps += 1
            counts.num_drafted += offered
            counts.num_verified += verified - 1
            counts.num_accepted += accepted - 1
            if self._recorders and not counts.loops.append(commit.token_ids):
                num_outside += 1
                num_emitted_outside += accepted
        if self._recorders:
            self._record(
                replace(
                    report.record,
                    num_correct_drafts=sum(emitted) - len(emitted),
                    num_emitted=sum(emitted),
                    num_requests_outside_loops=num_outside,
                    num_emitted_outside_loops=num_emitted_outside,
                    verify_lens=histogram(rows),
                )
            )
        if self._tracer is not None and report.tensors is not None:
            self._tracer.write(report.record, report.tensors, numbers)

    def _follow_prefill(self, reqs: Sequence[Any], commits: Sequence[Any]) -> None:
        """The first token of an answer is a prefill's, and so is the next after a retraction."""
        for req, commit in zip(reqs, commits, strict=True):
            if commit is not None:
                self._counts(req).loops.append(commit.token_ids)

    def _counts(self, req: Any) -> RequestCounts:
        counts = self._requests.get(req)
        if counts is None:
            counts = self._requests[req] = RequestCounts(self._num_requests)
            self._num_requests += 1
        return counts

    def _record(self, record: StepRecord) -> None:
        for recorder in self._recorders:
            recorder.add(record)

    @staticmethod
    def _attach(logits_output: Any, report: StepReport) -> None:
        logits_output.auxiliary_device_output = append_auxiliary_output(
            logits_output.auxiliary_device_output, report
        )
