"""Prompt lookup: against a plain search, and its table of measured acceptance."""

from __future__ import annotations

import math
import random

import pytest
import torch

from sglang_tetris.core.acceptance import accept
from sglang_tetris.core.candidates import validate
from sglang_tetris.core.layout import lay_out
from sglang_tetris.core.selection import select
from sglang_tetris.engine.drafting import DraftRequests
from sglang_tetris.engine.history import TokenHistory
from sglang_tetris.engine.lookup import MAX_MATCH, AcceptanceTable, LookupSource

DEPTH = 4


def requests_for(
    texts: list[list[int]],
    max_lens: list[int] | None = None,
    stops: frozenset[int] = frozenset(),
) -> DraftRequests:
    """Return requests whose text ends with the root token."""
    history = TokenHistory(len(texts), 64, 1000, "cpu")
    for slot, text in enumerate(texts):
        history.token_ids[slot, : len(text)] = torch.tensor(text)
        history.token_ids[slot, len(text) :] = 999  # left from another request; must not be read
    return DraftRequests(
        batch=None,
        history=history,
        req_pool_indices=torch.arange(len(texts)),
        seq_lens=torch.tensor([len(text) - 1 for text in texts]),
        windows=torch.zeros(len(texts), DEPTH + 1, dtype=torch.int64),
        max_lens=max_lens or [DEPTH] * len(texts),
        stop_token_ids=[stops] * len(texts),
    )


def longest_match(text: list[int]) -> tuple[int, list[int]]:
    """Return the length of the longest earlier suffix match and its continuation, by definition."""
    for length in range(min(MAX_MATCH, len(text) - 1), 0, -1):
        suffix = text[-length:]
        for end in range(len(text) - 1, length - 1, -1):  # the most recent first
            if text[end - length : end] == suffix:
                continuation = list(text)
                for j in range(DEPTH):
                    continuation.append(continuation[end + j])
                return length, continuation[len(text) :]
    return 0, []


@pytest.mark.parametrize("seed", range(300))
def test_the_draft_continues_the_longest_most_recent_match(seed: int) -> None:
    rng = random.Random(seed)
    texts = [
        [rng.randrange(rng.choice([2, 3, 9, 500])) for _ in range(rng.randint(1, 40))]
        for _ in range(4)
    ]

    source = LookupSource(DEPTH)
    trees = source.propose(requests_for(texts))

    validate(trees)
    for i, text in enumerate(texts):
        length, continuation = longest_match(text)
        drafted = trees.token_ids[i][~trees.is_padding[i]].tolist()
        assert drafted == continuation
        if length:
            expected = source.table.logprobs(torch.tensor([length]))[0].cumsum(0)
            torch.testing.assert_close(trees.path_logprobs[i], expected)


def test_a_request_near_its_end_is_drafted_for_no_further() -> None:
    trees = LookupSource(DEPTH).propose(requests_for([[1, 2, 1, 2, 1]] * 3, max_lens=[0, 2, 4]))

    assert (~trees.is_padding).sum(dim=1).tolist() == [0, 2, 4]
    assert trees.num_candidates == 6


def test_a_stop_token_and_what_follows_it_are_not_drafted() -> None:
    requests = requests_for([[1, 2, 3, 1], [7, 7, 7, 7]], stops=frozenset({3}))

    trees = LookupSource(DEPTH).propose(requests)

    assert trees.token_ids[0].tolist() == [2, -1, -1, -1]
    assert trees.token_ids[1].tolist() == [7, 7, 7, 7]


def test_only_nodes_whose_parent_was_accepted_teach() -> None:
    source = LookupSource(DEPTH)
    before = source.table.trials.clone(), source.table.successes.clone()
    requests = requests_for([[1, 2, 3, 1, 2, 3, 1]])  # a match of 4 tokens, drafts 2 3 1 2
    trees = source.propose(requests)
    layout = lay_out(trees, select(trees.path_logprobs.exp(), trees, 3), torch.tensor([1]), DEPTH)
    acceptance = accept(layout, torch.tensor([2, 7, 1, 2]))  # 2 stands, then 7 instead of 3

    source.observe(requests, trees, layout, acceptance)

    trials = source.table.trials - before[0]
    hits = source.table.successes - before[1]
    assert trials[4].tolist() == [1, 1, 0, 0]
    assert hits[4].tolist() == [1, 0, 0, 0]
    assert float(trials.sum()) == 2


def test_the_table_moves_from_its_prior_to_what_was_measured() -> None:
    table = AcceptanceTable(2)
    lens, depths = torch.full((1000,), 3), torch.full((1000,), 2)
    table.observe(lens, depths, torch.arange(1000) < 200)

    measured = table.logprobs(torch.tensor([3]))[0].exp()

    assert measured[1] == pytest.approx(0.2, abs=0.01)
    assert measured[0] == pytest.approx(3 / 5)  # the prior: nothing was seen at depth 1


def test_longer_matches_are_trusted_more_before_anything_is_known() -> None:
    first = AcceptanceTable(1).logprobs(torch.arange(1, MAX_MATCH + 1))[:, 0]

    assert bool((first.diff() > 0).all())
    assert float(AcceptanceTable(1).logprobs(torch.tensor([0]))) == -math.inf
