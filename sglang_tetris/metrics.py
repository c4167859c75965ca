"""What one step did, in sums; ratios are taken over many steps and never averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import msgspec

from sglang_tetris.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """The counts of one forward over the whole batch. Bonus tokens and roots are not in a count
    unless its name says so.

    A prefill has ``num_prefill_tokens`` and ``seconds``; its counts of decoding are 0. A request
    is outside a repetition loop (``loops``) in a step when the first token it emits then is; all
    that it emits in this step goes with the first, the partly inside too.
    """

    time_s: float = 0.0  # since the epoch, at the step's end
    kind: Literal["decode", "prefill"] = "decode"
    num_requests: int = 0
    num_drafted: int = 0  # candidates offered to the selection
    capacity: int = 0  # draft tokens the policy allowed
    num_selected: int = 0  # draft tokens verified
    num_correct_drafts: int = 0
    num_emitted: int = 0  # correct drafts and one bonus token per request
    num_rows: int = 0  # rows of the target's logits: roots and selected drafts
    num_prefill_tokens: int = 0  # prompt tokens computed, those from the prefix cache not
    num_requests_outside_loops: int = 0
    num_emitted_outside_loops: int = 0
    # Requests by their rows, the root counted: verify_lens[3] had a root and two drafts verified.
    verify_lens: list[int] = field(default_factory=list)
    # Per phase: draft, select, verify, sample and commit, or prefill.
    seconds: dict[str, float] = field(default_factory=dict)


_SUMMED = tuple(f.name for f in fields(StepRecord) if f.name.startswith(("num_", "capacity")))


@dataclass(slots=True, kw_only=True)
class StepTotals:
    """Sums over steps, of one server or of several."""

    num_steps: int = 0  # decode steps
    num_prefills: int = 0
    num_requests: int = 0
    num_drafted: int = 0
    capacity: int = 0
    num_selected: int = 0
    num_correct_drafts: int = 0
    num_emitted: int = 0
    num_rows: int = 0
    num_prefill_tokens: int = 0
    num_requests_outside_loops: int = 0
    num_emitted_outside_loops: int = 0
    verify_lens: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, step: StepRecord) -> None:
        """Count one more step."""
        if step.kind == "prefill":
            self.num_prefills += 1
        else:
            self.num_steps += 1
        self._add_sums(step)

    def __add__(self, other: StepTotals) -> StepTotals:
        """Return the sums over the steps of both."""
        both = StepTotals(
            num_steps=self.num_steps + other.num_steps,
            num_prefills=self.num_prefills + other.num_prefills,
        )
        both._add_sums(self)
        both._add_sums(other)
        return both

    def _add_sums(self, other: StepRecord | StepTotals) -> None:
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        pairs = zip_longest(self.verify_lens, other.verify_lens, fillvalue=0)
        self.verify_lens = [mine + theirs for mine, theirs in pairs]
        for phase, seconds in other.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    @property
    def num_wasted_rows(self) -> int:
        """Rows whose draft token turned out wrong."""
        return self.num_selected - self.num_correct_drafts

    @property
    def accept_length(self) -> float:
        """Emitted tokens per request and step, the bonus counted."""
        return _ratio(self.num_emitted, self.num_requests)

    @property
    def accept_length_outside_loops(self) -> float:
        """The same without the steps that a request began inside a repetition loop."""
        return _ratio(self.num_emitted_outside_loops, self.num_requests_outside_loops)

    @property
    def verify_accept_rate(self) -> float:
        """Correct drafts per verified draft."""
        return _ratio(self.num_correct_drafts, self.num_selected)

    @property
    def draft_accept_rate(self) -> float:
        """Correct drafts per drafted token."""
        return _ratio(self.num_correct_drafts, self.num_drafted)

    @property
    def target_efficiency(self) -> float:
        """Emitted tokens per row of the target forward."""
        return _ratio(self.num_emitted, self.num_rows)

    @property
    def rows_per_step(self) -> float:
        """Rows of the target forward per step, roots counted."""
        return _ratio(self.num_rows, self.num_steps)

    @property
    def mean_capacity(self) -> float:
        """Draft tokens that the policy allowed per step."""
        return _ratio(self.capacity, self.num_steps)


def histogram(lens: Sequence[int]) -> list[int]:
    """Return how often each length occurs, by length."""
    counts = [0] * (max(lens, default=-1) + 1)
    for length in lens:
        counts[length] += 1
    return counts


def read_step_log(path: Path) -> list[StepRecord]:
    """Return the steps in a file of ``--tetris-step-log``, oldest first.

    Fields that the writer did not know have their defaults. A last line without its end is left
    out: the server may be writing it.
    """
    decoder = msgspec.json.Decoder(StepRecord)
    steps = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                steps.append(decoder.decode(line))
            except msgspec.MsgspecError as error:
                raise UserError(f"{path}, line {number}: not a step: {error}") from None
    return steps


_PACKED = msgspec.msgpack.Decoder(StepRecord)


def pack_step(step: StepRecord) -> bytes:
    """Return a step as a message of ``--tetris-step-stream``."""
    return msgspec.msgpack.encode(step)


def unpack_step(message: bytes) -> StepRecord:
    """Return the step in a message of ``--tetris-step-stream``."""
    return _PACKED.decode(message)


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else 0.0
