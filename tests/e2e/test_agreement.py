"""Greedy text under TETRIS is that of a separate server without it: every token, every
log-probability, every cached-token count."""

from __future__ import annotations

import pytest

from tests.support.chats import Ask, differences
from tests.support.servers import Servers

pytestmark = [pytest.mark.sglang, pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.mark.parametrize("source", ["lookup", "lm"])
def test_every_token_agrees_with_the_plain_server(answers: Ask, source: str) -> None:
    plain = answers("plain")

    assert differences(answers(source), plain) == []


def test_later_turns_hit_the_prefix_cache(answers: Ask) -> None:
    later = [answer for chat in answers("plain") for answer in chat[1:]]

    assert later
    assert all(answer.cached_tokens for answer in later)


@pytest.mark.parametrize("source", ["lookup", "lm"])
def test_the_target_sees_roots_and_selected_drafts_only(
    answers: Ask, servers: Servers, source: str
) -> None:
    answers(source)

    steps = servers.get(source).steps()
    assert len(steps) > 100
    assert all(step.num_selected == min(step.capacity, step.num_drafted) for step in steps)
    assert all(step.num_rows == step.num_requests + step.num_selected for step in steps)
    binding = [step for step in steps if step.num_drafted > step.capacity]
    assert all(step.num_rows == step.num_requests + step.capacity for step in binding)
    assert len(binding) >= len(steps) / 2
