"""The token history is what was committed, whatever slot a request has had before."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import torch

from sglang_tetris.core.acceptance import accept
from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.layout import lay_out
from sglang_tetris.engine.history import TokenHistory


def test_prefill_writes_the_whole_prefix_and_the_sampled_token() -> None:
    history = TokenHistory(4, 16, 100, "cpu")
    texts = [[5, 6, 1_000_007], [8, 9]]  # one holds an image
    batch = SimpleNamespace(
        req_pool_indices=torch.tensor([3, 1]),
        seq_lens=torch.tensor([3, 2]),
        reqs=[SimpleNamespace(get_fill_ids=lambda text=text: array("q", text)) for text in texts],
    )

    history.record_prefill(batch, torch.tensor([70, 90], dtype=torch.int32))

    assert history.token_ids[3, :4].tolist() == [5, 6, 0, 70]
    assert history.token_ids[1, :3].tolist() == [8, 9, 90]
    assert history.roots(batch.req_pool_indices, batch.seq_lens).tolist() == [70, 90]


def test_a_step_appends_the_accepted_drafts_and_the_bonus() -> None:
    history = TokenHistory(2, 16, 100, "cpu")
    history.token_ids[1, :4] = torch.tensor([5, 6, 7, 70])
    tokens = torch.tensor([[11, 12, 13]])
    trees = CandidateTrees.chains(tokens, torch.zeros(1, 3), lens=[3])
    layout = lay_out(trees, torch.tensor([0, 1, 2]), torch.tensor([70]), 3)
    acceptance = accept(layout, torch.tensor([11, 12, 99, 55]))
    slots, seq_lens = torch.tensor([1]), torch.tensor([3])

    history.record_step(slots, seq_lens, acceptance)

    assert history.token_ids[1, :7].tolist() == [5, 6, 7, 70, 11, 12, 99]
    assert history.roots(slots, seq_lens + acceptance.accept_lens).tolist() == [99]


def test_between_returns_each_requests_tokens_from_its_start() -> None:
    history = TokenHistory(3, 6, 100, "cpu")
    history.token_ids[:] = torch.arange(18).view(3, 6)

    between = history.between(
        torch.tensor([2, 0, 1]), torch.tensor([1, 4, 0]), torch.tensor([3, 2, 0])
    )

    assert between.tolist() == [[13, 14, 15], [4, 5, -1], [-1, -1, -1]]


def test_between_may_end_with_the_table() -> None:
    history = TokenHistory(2, 6, 100, "cpu")
    history.token_ids[:] = torch.arange(12).view(2, 6)

    between = history.between(torch.tensor([1, 0]), torch.tensor([5, 0]), torch.tensor([1, 6]))

    assert between.tolist() == [[11, -1, -1, -1, -1, -1], [0, 1, 2, 3, 4, 5]]


def test_nothing_lies_between_where_nothing_was_answered() -> None:
    history = TokenHistory(2, 6, 100, "cpu")

    assert history.between(*torch.tensor([[1], [3], [0]])).shape == (1, 0)
