"""Which requests are drafted for, and how far."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sglang_tetris.engine.requests import is_plain_greedy, stop_token_ids, usable_draft_tokens


def request(**changes: Any) -> Any:
    """Return a plain greedy request with the given differences."""
    params = {
        "top_k": 1,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        "logit_bias": None,
        "max_new_tokens": 10,
    }
    own = {"grammar": None, "custom_logit_processor": None, "output_ids": [1]}
    own |= {key: changes.pop(key) for key in list(changes) if key in own}
    return SimpleNamespace(sampling_params=SimpleNamespace(**(params | changes)), **own)


def test_a_greedy_request_is_drafted_for() -> None:
    assert is_plain_greedy(request())


@pytest.mark.parametrize(
    "change",
    [
        {"top_k": 50},
        {"frequency_penalty": 0.1},
        {"presence_penalty": -0.1},
        {"repetition_penalty": 1.1},
        {"min_new_tokens": 3},
        {"logit_bias": {"5": 1.0}},
        {"grammar": object()},
        {"custom_logit_processor": "x"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_request_with_processed_logits_is_not(change: dict[str, Any]) -> None:
    assert not is_plain_greedy(request(**change))


@pytest.mark.parametrize(
    ("max_new_tokens", "num_emitted", "usable"),
    [(10, 1, 4), (6, 1, 4), (5, 1, 3), (3, 1, 1), (2, 1, 0), (1, 1, 0), (1, 5, 0)],
)
def test_drafts_end_with_the_answer(max_new_tokens: int, num_emitted: int, usable: int) -> None:
    req = request(max_new_tokens=max_new_tokens, output_ids=[0] * num_emitted)

    assert usable_draft_tokens(req, depth=4) == usable


def test_every_way_to_name_a_stop_token_counts() -> None:
    req = request()
    req.sampling_params.ignore_eos = False
    req.sampling_params.stop_token_ids = {5}
    req.eos_token_ids = {2}
    req.tokenizer = SimpleNamespace(eos_token_id=3, additional_stop_token_ids=[4])

    assert stop_token_ids(req) == {2, 3, 4, 5}

    req.sampling_params.ignore_eos = True
    assert stop_token_ids(req) == frozenset()
