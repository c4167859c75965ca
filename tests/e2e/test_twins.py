"""Servers bent from outside: what must not matter does not, and what must is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_tetris.config import CONTROL_TOKEN
from sglang_tetris.control import switch
from tests.support.chats import Answer, Ask, conversations, differences, hold
from tests.support.generate import generate, greedy
from tests.support.servers import start

pytestmark = [pytest.mark.sglang, pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_CHATS = 8


def ask(base_url: str, num_chats: int = NUM_CHATS) -> list[list[Answer]]:
    """Hold the first chats as they were held with the plain server."""
    return hold(base_url, conversations(num_chats), at_once=8, max_tokens=128)


@pytest.mark.parametrize("source", ["lookup", "lm"])
@pytest.mark.parametrize("num_chats", [NUM_CHATS, pytest.param(60, marks=pytest.mark.slow)])
def test_the_masked_uniform_layout_gives_the_same(
    answers: Ask, tmp_path: Path, source: str, num_chats: int
) -> None:
    plain = answers("plain")[:num_chats]

    with start(f"{source}+masked_layout", tmp_path) as bent:
        masked = ask(bent.base_url, num_chats)

    assert differences(masked, plain) == []
    steps = bent.steps()
    assert all(step.num_rows == step.num_requests + step.num_drafted for step in steps)
    assert any(step.num_drafted > step.capacity for step in steps)


def test_a_tree_gives_the_same_and_moves_its_kv(answers: Ask, tmp_path: Path) -> None:
    plain = answers("plain")[:NUM_CHATS]

    with start("lookup+decoys", tmp_path) as bent:
        through_trees = ask(bent.base_url)

    assert differences(through_trees, plain) == []
    steps = bent.steps()
    num_correct = sum(step.num_correct_drafts for step in steps)
    assert num_correct > 100
    # Each of them stood behind a decoy that was verified as well, so each was moved.
    assert num_correct <= sum(step.num_selected for step in steps) / 2


def test_a_draft_that_is_the_target_is_always_right(answers: Ask, tmp_path: Path) -> None:
    """A hole in the draft's KV, or one token off, and it would be wrong somewhere."""
    plain = answers("plain")[:NUM_CHATS]

    endpoint = f"ipc://{tmp_path}/control"
    with start(
        "self", tmp_path, "--tetris-control", endpoint, environ={CONTROL_TOKEN: "secret"}
    ) as twin:
        drafted = ask(twin.base_url)
        # A cached prefix that the draft has no KV of: it was served without drafting.
        story = "Once upon a time there was a fox who"
        switch(endpoint, "secret", {"policy": "fixed", "capacity": 0})
        undrafted = generate(twin.base_url, [greedy(story, 40, ignore_eos=True)])[0]
        switch(endpoint, "secret", {"policy": "fixed", "capacity": 8})
        generate(twin.base_url, [greedy(story + undrafted["text"], 40, ignore_eos=True)])

    assert differences(drafted, plain) == []
    steps = twin.steps()
    assert sum(step.num_selected for step in steps) > 500
    assert [step for step in steps if step.num_correct_drafts != step.num_selected] == []


def test_a_broken_acceptance_rule_is_noticed(answers: Ask, tmp_path: Path) -> None:
    plain = answers("plain")[:NUM_CHATS]

    with start("lookup+broken_acceptance", tmp_path) as bent:
        broken = ask(bent.base_url)

    assert differences(broken, plain)
