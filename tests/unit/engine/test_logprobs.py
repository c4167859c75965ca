"""The log-probabilities of a step's tokens are those that plain decoding reports for each."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_tetris.core.acceptance import Acceptance, accept
from sglang_tetris.core.layout import VerifyLayout, lay_out
from tests import builders
from tests.support import plain_decode
from tests.support.stand_ins import Batch, Request, request

# What SGLang's modules say of themselves while they are imported.
pytestmark = pytest.mark.filterwarnings("ignore:Only CUDA", "ignore::DeprecationWarning")

VOCAB = 40
TOPS = [3, 0, 2]
WANTED: list[list[int] | None] = [[7, 0], None, [39]]


@pytest.fixture(scope="module", autouse=True)
def _engine() -> Iterator[None]:
    with plain_decode.engine():
        yield


def case() -> tuple[list[Request], VerifyLayout, Acceptance, torch.Tensor]:
    """Return requests of several temperatures, one of which is greedy, after a verification."""
    reqs = [
        request(output=[1], temperature=0.5),
        request(output=[2], temperature=0.0),
        request(output=[3], temperature=1.0, top_k=4),
    ]
    trees = builders.forest(
        builders.tree([-1, -1, 1], token_ids=[4, 5, 6]),
        builders.chain(2, token_ids=[7, 8]),
        builders.tree([]),
    )
    layout = lay_out(trees, torch.tensor([0, 1, 2, 3, 4]), torch.tensor([1, 2, 3]), 2)
    acceptance = accept(layout, torch.tensor([5, 0, 6, 9, 7, 11, 0, 12]))
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(layout.num_verify, VOCAB, generator=generator) * 3
    logits[:, 20] = -torch.inf
    return reqs, layout, acceptance, logits


def filled_in(**asked: Any) -> tuple[Any, Acceptance, list[list[Any]]]:
    """Return what is reported for the step, and what plain decodes report token by token."""
    from sglang_tetris.engine.logprobs import fill_in  # late: see the filter above

    reqs, layout, acceptance, logits = case()
    batch = Batch(reqs=reqs)
    info = plain_decode.sampling_info(batch, VOCAB)
    step = SimpleNamespace(next_token_logits=logits.clone())
    of_batch = SimpleNamespace(sampling_info=info, **asked)
    fill_in(of_batch, layout, acceptance, step)
    plain = [
        [
            plain_decode.decode(
                reqs[i],
                logits[row],
                top_logprobs_nums=[(asked["top_logprobs_nums"] or [0] * 3)[i]],
                token_ids_logprobs=[(asked["token_ids_logprobs"] or [None] * 3)[i]],
            )
            for row in rows
            if row >= 0
        ]
        for i, rows in enumerate(acceptance.accepted_rows.tolist())
    ]
    return step, acceptance, plain


def full_logprobs(req: Request, logits: torch.Tensor) -> torch.Tensor:
    greedy = req.sampling_params.top_k == 1
    return (logits / (1.0 if greedy else req.sampling_params.temperature)).log_softmax(dim=-1)


def test_a_tokens_log_probability_is_at_its_requests_temperature() -> None:
    reqs, _, _, logits = case()

    step, acceptance, _ = filled_in(top_logprobs_nums=None, token_ids_logprobs=None)

    assert step.next_token_logprobs.shape == acceptance.token_ids.shape == (3, 3)
    for i, rows in enumerate(acceptance.accepted_rows.tolist()):
        for column, row in enumerate(rows):
            if row >= 0:
                token_id = int(acceptance.token_ids[i, column])
                expected = full_logprobs(reqs[i], logits[row])[token_id]
                assert torch.equal(step.next_token_logprobs[i, column], expected)
    assert not hasattr(step, "next_token_top_logprobs_val")
    assert not hasattr(step, "next_token_token_ids_logprobs_val")


def test_the_most_likely_tokens_are_those_of_plain_decodes() -> None:
    step, acceptance, plain = filled_in(top_logprobs_nums=TOPS, token_ids_logprobs=None)

    num_columns = acceptance.token_ids.shape[1]
    assert len(step.next_token_top_logprobs_val) == 3 * num_columns
    for i, decodes in enumerate(plain):
        for column, decode in enumerate(decodes):
            at = i * num_columns + column
            values, token_ids = (
                decode.next_token_top_logprobs_val[0] if TOPS[i] else torch.empty(0),
                decode.next_token_top_logprobs_idx[0] if TOPS[i] else torch.empty(0),
            )
            assert step.next_token_top_logprobs_val[at].tolist() == values.tolist()
            assert step.next_token_top_logprobs_idx[at].tolist() == token_ids.tolist()


def test_the_tokens_asked_for_are_those_of_plain_decodes() -> None:
    step, acceptance, plain = filled_in(top_logprobs_nums=[0, 0, 0], token_ids_logprobs=WANTED)

    num_columns = acceptance.token_ids.shape[1]
    assert len(step.next_token_token_ids_logprobs_val) == 3 * num_columns
    for i, decodes in enumerate(plain):
        for column, decode in enumerate(decodes):
            at = i * num_columns + column
            assert step.next_token_token_ids_logprobs_idx[at] == (WANTED[i] or [])
            if WANTED[i]:
                expected = decode.next_token_token_ids_logprobs_val[0]
                assert step.next_token_token_ids_logprobs_val[at].tolist() == expected.tolist()


def test_a_masked_tokens_log_probability_is_a_number() -> None:
    step, _, _ = filled_in(top_logprobs_nums=[0, 0, 0], token_ids_logprobs=[[20], [20], [20]])

    assert all(values.isfinite().all() for values in step.next_token_token_ids_logprobs_val)
