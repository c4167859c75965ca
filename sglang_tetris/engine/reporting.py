"""What the telemetry of a worker adds to SGLang's answers and to its ``/metrics``.

SGLang's seam for further fields of an answer (srt/sampling/sampling_observer.py): the scheduler
chooses a streamer that adds them to what leaves for the tokenizer's process, and there they go
into ``meta_info``.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.scheduler_components.output_streamer import SchedulerOutputStreamer

from sglang_tetris.engine.prometheus import PrometheusCounters
from sglang_tetris.engine.telemetry import RequestCounts, Telemetry

_KEY = "tetris"  # between the two processes


def connect(scheduler: Any, streamer: type) -> type:
    """Return the streamer class that ``scheduler`` is to use; count on its metrics from now on."""
    telemetry: Telemetry = scheduler.model_worker.telemetry
    metrics = scheduler.metrics_collector_context
    if metrics.current_scheduler_metrics_enabled:
        telemetry.add_recorder(PrometheusCounters(metrics.collector.labels))
    if scheduler.rust_server is not None:  # its way out has no such fields
        return streamer
    return _streamer_with(telemetry)


def _streamer_with(telemetry: Telemetry) -> type:
    class TetrisOutputStreamer(SchedulerOutputStreamer):
        """Sends the counts of each request along with its end."""

        has_additional_customized_info = True

        def build_additional_customized_info(self, reqs: list[Any]) -> dict[str, list[Any]]:
            """Return a list per request: its fields if it has ended, else nothing."""
            ended = [telemetry.counts_of(req) if req.finished() else None for req in reqs]
            if not any(ended):
                return {}
            return {_KEY: [[] if counts is None else [fields(counts)] for counts in ended]}

    return TetrisOutputStreamer


def fields(counts: RequestCounts) -> dict[str, Any]:
    """Return what an answer's ``meta_info`` says of its own decode steps."""
    return {
        "num_steps": counts.num_steps,
        "num_drafted": counts.num_drafted,
        "num_verified": counts.num_verified,
        "num_accepted": counts.num_accepted,
        "verify_accept_rate": _ratio(counts.num_accepted, counts.num_verified),
        "draft_accept_rate": _ratio(counts.num_accepted, counts.num_drafted),
        "accept_length": _ratio(counts.num_accepted + counts.num_steps, counts.num_steps),
    }


def update_meta_info(
    update: Any,
    manager: Any,
    meta_info: dict[str, Any],
    state: Any,
    customized_info: dict[str, list[Any]],
    index: int,
    finish_reason: Any,
) -> None:
    """Put our fields into ``meta_info`` as they are; SGLang would make a list of them."""
    others = {key: values for key, values in customized_info.items() if key != _KEY}
    update(manager, meta_info, state, others, index, finish_reason)
    for of_request in customized_info.get(_KEY, [[]] * (index + 1))[index]:
        meta_info.update(of_request)


def _ratio(numerator: int, denominator: int) -> float:
    return numerator / denominator if denominator else 0.0
