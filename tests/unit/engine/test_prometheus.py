"""The counters on SGLang's /metrics: what a step adds, and that the dashboard asks for them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from prometheus_client import REGISTRY

from sglang_tetris.engine.prometheus import COUNTERS, PREFIX, SECONDS, PrometheusCounters, sums
from sglang_tetris.metrics import StepRecord, StepTotals

DASHBOARD = Path(__file__).parents[3] / "benchmarks" / "grafana.json"
STEP = StepRecord(
    num_requests=2,
    num_drafted=6,
    capacity=5,
    num_selected=4,
    num_correct_drafts=3,
    num_emitted=5,
    num_rows=6,
    num_requests_outside_loops=1,
    num_emitted_outside_loops=4,
    seconds={"draft": 0.5, "verify": 1.5},
)
PREFILL = StepRecord(kind="prefill", num_prefill_tokens=30, seconds={"prefill": 2.0})


def test_the_sums_are_those_of_the_totals() -> None:
    totals = StepTotals()
    counted = dict.fromkeys(COUNTERS, 0)
    for step in (STEP, PREFILL, STEP):
        totals.add(step)
        for name, value in sums(step).items():
            counted[name] += value

    assert counted.pop("capacity") == totals.capacity
    assert counted == {name: getattr(totals, f"num_{name}") for name in counted}


def test_steps_are_counted_under_the_labels_of_the_server() -> None:
    labels = {"model_name": "some", "tp_rank": 0}
    counters = PrometheusCounters(labels)

    for step in (STEP, PREFILL, replace(STEP, num_emitted=1)):
        counters.add(step)

    def value(name: str, **more: str) -> float | None:
        of_server = {"model_name": "some", "tp_rank": "0"}
        return REGISTRY.get_sample_value(f"{PREFIX}{name}_total", of_server | more)

    assert value("steps") == 2
    assert value("prefills") == 1
    assert value("emitted") == 6
    assert value("prefill_tokens") == 30
    assert value(SECONDS, phase="verify") == 3.0
    assert value(SECONDS, phase="prefill") == 2.0
    assert all(value(name) is not None for name in COUNTERS)


def test_the_dashboard_asks_for_counters_that_exist() -> None:
    dashboard = json.loads(DASHBOARD.read_text())

    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]] + [
        variable["query"] for variable in dashboard["templating"]["list"]
    ]
    asked = {name for query in queries for name in re.findall(r"sglang:\w+", query)}

    assert asked == {f"{PREFIX}{name}_total" for name in (*COUNTERS, SECONDS)}
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(places) == len(set(places)) > 0
