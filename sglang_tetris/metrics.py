"""What one step did, in sums; ratios are taken over many steps and never averaged."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """The counts of one decode step over the whole batch. Bonus tokens and roots are not in a
    count unless its name says so."""

    num_requests: int
    num_drafted: int  # candidates offered to the selection
    capacity: int  # draft tokens the policy allowed
    num_selected: int  # draft tokens verified
    num_correct_drafts: int
    num_emitted: int  # correct drafts and one bonus token per request
    num_rows: int  # rows of the target's logits: roots and selected drafts
    seconds: dict[str, float] = field(default_factory=dict)  # per phase


@dataclass(slots=True, kw_only=True)
class StepTotals:
    """Sums over steps."""

    num_steps: int = 0
    num_requests: int = 0
    num_drafted: int = 0
    capacity: int = 0
    num_selected: int = 0
    num_correct_drafts: int = 0
    num_emitted: int = 0
    num_rows: int = 0

    def add(self, step: StepRecord) -> None:
        """Count one more step."""
        self.num_steps += 1
        for name in self.__slots__[1:]:
            setattr(self, name, getattr(self, name) + getattr(step, name))

    @property
    def accept_length(self) -> float:
        """Emitted tokens per request and step, the bonus counted."""
        return _ratio(self.num_emitted, self.num_requests)

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


def read_step_log(path: Path) -> list[StepRecord]:
    """Return the steps in a file of ``--tetris-step-log``, oldest first."""
    with path.open(encoding="utf-8") as file:
        return [StepRecord(**json.loads(line)) for line in file]


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else 0.0
