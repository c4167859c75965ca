"""The draft input follows its batch through SGLang's filters and merges, relayed or not."""

from __future__ import annotations

import torch

from sglang_tetris.engine.relay import TetrisDraftInput


def test_without_overlap_the_bonus_tokens_are_filtered_and_merged() -> None:
    left = TetrisDraftInput(bonus_tokens=torch.tensor([1, 2, 3]))
    right = TetrisDraftInput(bonus_tokens=torch.tensor([4]))

    left.filter_batch(torch.tensor([0, 2]))
    left.merge_batch(right)

    assert left.bonus_tokens.tolist() == [1, 3, 4]


def test_under_overlap_the_relay_slots_are() -> None:
    left = TetrisDraftInput(bonus_tokens=torch.tensor([1, 2]), future_indices=torch.tensor([5, 6]))
    right = TetrisDraftInput(bonus_tokens=torch.tensor([3]), future_indices=torch.tensor([7]))

    left.filter_batch(torch.tensor([1]))
    left.merge_batch(right)

    assert left.future_indices is not None
    assert left.future_indices.tolist() == [6, 7]


def test_it_is_a_draft_input_to_sglang() -> None:
    draft = TetrisDraftInput(bonus_tokens=torch.zeros(0))

    assert draft.is_draft_input()
    assert not draft.is_verify_input()
