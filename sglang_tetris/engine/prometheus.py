"""The sums of all steps as counters on SGLang's own ``/metrics``.

Sums only: they add up over ranks and servers, and whoever reads them takes the ratios.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_tetris.metrics import StepRecord

PREFIX = "sglang:tetris_"
# By the name after the prefix and before "_total"; those of StepRecord's fields without "num_".
COUNTERS = {
    "steps": "Decode steps.",
    "prefills": "Prefill forwards.",
    "requests": "Requests in decode steps, each counted in each of its steps.",
    "drafted": "Draft tokens offered to the selection.",
    "capacity": "Draft tokens that the policy allowed to verify.",
    "selected": "Draft tokens verified.",
    "correct_drafts": "Draft tokens verified and right.",
    "emitted": "Tokens emitted by decode steps: correct drafts and bonus tokens.",
    "rows": "Rows of the target's verify forwards: roots and selected draft tokens.",
    "wasted_rows": "Rows whose draft token was wrong.",
    "prefill_tokens": "Prompt tokens computed.",
    "requests_outside_loops": "Requests in steps that they began outside a repetition loop.",
    "emitted_outside_loops": "Tokens emitted by requests in such steps.",
}
SECONDS = "seconds"  # a counter with the label "phase"


def sums(step: StepRecord) -> dict[str, int]:
    """Return what one step adds to each of ``COUNTERS``."""
    is_prefill = step.kind == "prefill"
    own = {
        "steps": int(not is_prefill),
        "prefills": int(is_prefill),
        "wasted_rows": step.num_selected - step.num_correct_drafts,
        "capacity": step.capacity,
    }
    return {name: own[name] if name in own else getattr(step, f"num_{name}") for name in COUNTERS}


class PrometheusCounters:
    """Counts every step in SGLang's registry, under SGLang's own labels."""

    def __init__(self, labels: Mapping[str, Any]) -> None:
        # Late: the client reads at import where SGLang's processes share their values.
        from prometheus_client import Counter

        self._counters = {
            name: Counter(PREFIX + name, documentation, labelnames=list(labels)).labels(**labels)
            for name, documentation in COUNTERS.items()
        }
        self._labels = labels
        self._seconds = Counter(
            PREFIX + SECONDS,
            "Seconds in steps, by phase: draft, select, verify, sample, commit, prefill.",
            labelnames=[*labels, "phase"],
        )
        self._of_phase: dict[str, Any] = {}

    def add(self, step: StepRecord) -> None:
        """Count one step."""
        for name, value in sums(step).items():
            if value:
                self._counters[name].inc(value)
        for phase, seconds in step.seconds.items():
            if phase not in self._of_phase:
                self._of_phase[phase] = self._seconds.labels(**self._labels, phase=phase)
            self._of_phase[phase].inc(seconds)
