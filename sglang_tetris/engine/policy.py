"""How far the next step drafts and how much it verifies, and the change of both while serving."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sglang_tetris.config import CONTROL_TOKEN, TetrisConfig, switched
from sglang_tetris.core.capacity import CapacityPolicy, fixed_capacity, per_request_capacity
from sglang_tetris.engine.control import ControlServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What holds for a whole step."""

    depth: int  # tokens drafted per request
    capacity: CapacityPolicy

    @classmethod
    def of(cls, config: TetrisConfig) -> Policy:
        """Return the policy that the settings name."""
        capacity = (
            fixed_capacity(config.capacity)
            if config.policy == "fixed"
            else per_request_capacity(config.tokens_per_request)
        )
        return cls(depth=config.draft_tokens, capacity=capacity)


class Steering:
    """Keeps the policy of the next step."""

    def __init__(self, config: TetrisConfig) -> None:
        self._started = config
        # Replaced as a whole, by another thread: a step reads it once, at its start.
        self.policy = Policy.of(config)
        self._control = (
            ControlServer(config.control, os.environ[CONTROL_TOKEN], self.switch)
            if config.control is not None
            else None
        )

    def switch(self, wanted: Mapping[str, Any]) -> None:
        """Make other settings hold from the next step on; raise ``ConfigError`` if they cannot."""
        self.policy = Policy.of(switched(self._started, wanted))
