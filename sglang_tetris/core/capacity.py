"""How many draft tokens the batch may verify in a step; roots are never counted.

A policy sees the number of requests only. What a step costs is behind ``CostModel``; which
candidates fill the capacity is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

CapacityPolicy = Callable[[int], int]  # num_requests -> draft tokens to verify over the batch


class CostModel(Protocol):
    """What a target forward costs on this machine."""

    def seconds(self, num_rows: int) -> float:
        """Return the expected duration with ``num_rows`` rows, roots counted; never falls."""
        ...


def fixed_capacity(num_tokens: int) -> CapacityPolicy:
    """Return the policy that verifies ``num_tokens`` draft tokens, however many requests run."""
    _check_count("num_tokens", num_tokens)

    def capacity(num_requests: int) -> int:
        _check_count("num_requests", num_requests)
        return num_tokens

    return capacity


def per_request_capacity(tokens_per_request: int) -> CapacityPolicy:
    """Return the policy of TETRIS (ACL 2025): k tokens times the batch size, shared freely."""
    _check_count("tokens_per_request", tokens_per_request)

    def capacity(num_requests: int) -> int:
        _check_count("num_requests", num_requests)
        return tokens_per_request * num_requests

    return capacity


def _check_count(name: str, count: int) -> None:
    if count < 0:
        raise ValueError(f"{name} must be at least 0, got {count}")
