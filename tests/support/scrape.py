"""What a server says on ``/metrics`` about its steps."""

from __future__ import annotations

import re

import httpx

from sglang_tetris.engine.prometheus import PREFIX

_LINE = re.compile(rf'^{PREFIX}(\w+)_total{{(?:.*phase="(\w+)")?.*}} (\S+)$', re.MULTILINE)


def counters(base_url: str) -> dict[tuple[str, str | None], float]:
    """Return the plugin's counters by name and phase, which only the seconds have."""
    text = httpx.get(f"{base_url}/metrics", timeout=60).text
    return {(match[1], match[2]): float(match[3]) for match in _LINE.finditer(text)}
