"""Capacity policies count draft tokens over the batch, roots excluded."""

from __future__ import annotations

import pytest

from sglang_tetris.core.capacity import (
    CapacityPolicy,
    CostModel,
    fixed_capacity,
    per_request_capacity,
)


@pytest.mark.parametrize("num_requests", [0, 1, 64])
def test_a_fixed_capacity_ignores_the_batch_size(num_requests: int) -> None:
    assert fixed_capacity(48)(num_requests) == 48


@pytest.mark.parametrize(("num_requests", "expected"), [(0, 0), (1, 3), (64, 192)])
def test_the_papers_capacity_is_k_times_the_batch_size(num_requests: int, expected: int) -> None:
    assert per_request_capacity(3)(num_requests) == expected


def test_a_capacity_of_zero_is_allowed() -> None:
    assert fixed_capacity(0)(8) == 0
    assert per_request_capacity(0)(8) == 0


def test_negative_counts_are_refused_when_the_policy_is_made() -> None:
    with pytest.raises(ValueError, match="num_tokens must be at least 0, got -1"):
        fixed_capacity(-1)
    with pytest.raises(ValueError, match="tokens_per_request must be at least 0, got -2"):
        per_request_capacity(-2)


@pytest.mark.parametrize("policy", [fixed_capacity(4), per_request_capacity(4)])
def test_a_negative_batch_size_is_refused(policy: CapacityPolicy) -> None:
    with pytest.raises(ValueError, match="num_requests must be at least 0, got -1"):
        policy(-1)


def test_anything_with_seconds_per_row_count_is_a_cost_model() -> None:
    class Linear:
        def seconds(self, num_rows: int) -> float:
            return 0.01 + 0.001 * num_rows

    cost_model: CostModel = Linear()

    assert cost_model.seconds(10) < cost_model.seconds(20)
