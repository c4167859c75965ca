"""A result survives a file, and two are compared only if they asked the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_tetris.bench.compare import compare
from sglang_tetris.bench.schema import BenchResult, ResultError, read_result
from tests.unit.bench.results import example, findings_of, plan_of, result_of

# The keys that the issue names.
ARM_KEYS = {
    "arm", "concurrency", "output_tokens_per_s", "ttft_s", "itl_s", "e2e_s", "accept_length",
    "accept_length_outside_loops", "verify_accept_rate", "draft_accept_rate", "target_efficiency",
    "rows_per_step", "cached_token_share", "phase_seconds", "errors",
}  # fmt: skip


def written(result: BenchResult, path: Path) -> Path:
    """Write a result to a file."""
    path.write_text(result.to_json() + "\n")
    return path


def test_a_result_survives_a_file(tmp_path: Path) -> None:
    result = example()

    assert read_result(written(result, tmp_path / "a.json")) == result
    assert "\n" not in result.to_json()


def test_the_keys_are_those_that_readers_know() -> None:
    content = json.loads(example().to_json())

    assert content["schema"] == 1
    assert {"environment", "workload", "arms", "ratios"} <= content.keys()
    assert content["arms"][0].keys() >= ARM_KEYS
    assert content["arms"][0]["ttft_s"].keys() == {"p50", "p90", "p99"}
    assert content["ratios"][0].keys() >= {
        "arm", "baseline", "concurrency", "ratio", "low", "high",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "Invalid JSON"),
        ("[]", "valid dictionary|object"),
        ('{"schema": 2}', "schema: Input should be 1"),
        ("{}", "is_complete: Field required"),
    ],
)
def test_another_file_is_refused(content: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)

    with pytest.raises(ResultError, match=said) as error:
        read_result(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    with pytest.raises(ResultError, match="No such file"):
        read_result(tmp_path / "none")


def test_two_results_give_a_ratio_per_arm_and_load(tmp_path: Path) -> None:
    plan = plan_of("none,fixed:4")
    before = result_of(plan, findings_of(plan, {"none": [2.0, 2.0], "fixed:4": [1.0, 1.0]}))
    after = result_of(plan, findings_of(plan, {"none": [2.0, 2.0], "fixed:4": [0.5, 0.5]}))

    table = compare(written(before, tmp_path / "a"), written(after, tmp_path / "b"))

    assert [(row[0], row[2], row[3], row[4]) for row in table.rows] == [
        ("none", "1.5", "1.5", "1.000 [1.000, 1.000]"),
        ("fixed:4", "3.0", "6.0", "2.000 [2.000, 2.000]"),
    ]


def test_different_workloads_are_not_compared(tmp_path: Path) -> None:
    plan = plan_of("none")
    findings = findings_of(plan, {"none": [1.0]})
    before = written(result_of(plan, findings), tmp_path / "a")
    after = written(result_of(plan, findings, seed=3), tmp_path / "b")

    with pytest.raises(ResultError, match="cannot be compared: seed is 0 and 3"):
        compare(before, after)


def test_results_without_a_common_arm_are_not_compared(tmp_path: Path) -> None:
    paths = []
    for word in ("none", "fixed:4"):
        plan = plan_of(word)
        paths.append(written(result_of(plan, findings_of(plan, {word: [1.0]})), tmp_path / word))

    with pytest.raises(ResultError, match="no arm and load in common"):
        compare(*paths)
