"""Greedy text under TETRIS is that of a separate server without it: every token, every
log-probability, every cached-token count."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from tests.support.chats import Answer, conversations, differences, hold
from tests.support.servers import Servers

pytestmark = [pytest.mark.sglang, pytest.mark.e2e, pytest.mark.timeout(900)]

AT_ONCE = 8
MAX_TOKENS = 128
NUM_CHATS = 60
NUM_MASKED = 24  # the padded twin is slower, and the same text is compared


Ask = Callable[..., list[list[Answer]]]


@pytest.fixture(scope="module")
def answers(servers: Servers) -> Ask:
    """Return what a server of a kind answers to the first ``count`` chats, asked once."""

    @functools.cache
    def of(kind: str, count: int = NUM_CHATS) -> list[list[Answer]]:
        url = servers.get(kind).base_url
        return hold(url, conversations(count), at_once=AT_ONCE, max_tokens=MAX_TOKENS)

    return of


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
    assert all(step.num_selected == min(step.capacity, step.num_drafted) for step in steps)
    assert all(step.num_rows == step.num_requests + step.num_selected for step in steps)
    binding = [step for step in steps if step.num_drafted > step.capacity]
    assert all(step.num_rows == step.num_requests + step.capacity for step in binding)
    assert len(binding) >= len(steps) / 2


@pytest.mark.parametrize("source", ["lookup", "lm"])
def test_the_masked_uniform_layout_gives_the_same(
    answers: Ask, servers: Servers, source: str
) -> None:
    plain = answers("plain")[:NUM_MASKED]

    masked = answers(f"{source}+masked_layout", NUM_MASKED)

    assert differences(masked, plain) == []
    steps = servers.get(f"{source}+masked_layout").steps()
    assert all(step.num_rows == step.num_requests + step.num_drafted for step in steps)


def test_a_tree_gives_the_same_and_moves_its_kv(answers: Ask) -> None:
    plain = answers("plain")[:NUM_MASKED]

    assert differences(answers("lookup+decoys", NUM_MASKED), plain) == []


def test_a_broken_acceptance_rule_is_noticed(answers: Ask) -> None:
    plain = answers("plain")[:AT_ONCE]

    assert differences(answers("lookup+broken_acceptance", AT_ONCE), plain)
