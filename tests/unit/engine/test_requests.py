"""How far a request is drafted for, and which tokens end it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_tetris.engine.requests import ending_token_ids, stop_token_ids, usable_draft_tokens


def request(*, max_new_tokens: int = 10, num_emitted: int = 1) -> Any:
    return SimpleNamespace(
        sampling_params=SimpleNamespace(max_new_tokens=max_new_tokens),
        output_ids=[0] * num_emitted,
    )


@pytest.mark.parametrize(
    ("max_new_tokens", "num_emitted", "usable"),
    [(10, 1, 4), (6, 1, 4), (5, 1, 3), (3, 1, 1), (2, 1, 0), (1, 1, 0), (1, 5, 0)],
)
def test_drafts_end_with_the_answer(max_new_tokens: int, num_emitted: int, usable: int) -> None:
    req = request(max_new_tokens=max_new_tokens, num_emitted=num_emitted)

    assert usable_draft_tokens(req, depth=4) == usable


def test_every_way_to_name_a_stop_token_counts() -> None:
    req = request()
    req.sampling_params.ignore_eos = False
    req.sampling_params.stop_token_ids = {5}
    req.eos_token_ids = {2}
    req.tokenizer = SimpleNamespace(eos_token_id=3, additional_stop_token_ids=[4])

    assert stop_token_ids(req) == ending_token_ids(req) == {2, 3, 4, 5}

    req.sampling_params.ignore_eos = True
    assert stop_token_ids(req) == frozenset()
    assert ending_token_ids(req) == {2, 3, 4, 5}  # for a least number of tokens they still do


def test_a_request_may_have_no_ending_token() -> None:
    req = request()
    req.sampling_params.stop_token_ids = req.eos_token_ids = req.tokenizer = None

    assert ending_token_ids(req) == frozenset()

    req.tokenizer = SimpleNamespace(eos_token_id=None, additional_stop_token_ids=None)
    assert ending_token_ids(req) == frozenset()
