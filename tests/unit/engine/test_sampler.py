"""The sampler of plain forwards: where it serves, and each row as if it were alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from sglang.srt.runtime_context import get_context

from sglang_tetris.core.noise import uniforms
from sglang_tetris.core.sampling import draw as core_draw
from sglang_tetris.core.sampling import kept_probs
from tests import builders
from tests.support import plain_decode
from tests.support.stand_ins import Batch, Request, request

# What SGLang's modules say of themselves while they are imported.
pytestmark = pytest.mark.filterwarnings("ignore:Only CUDA", "ignore::DeprecationWarning")

VOCAB = 30


@pytest.fixture(scope="module", autouse=True)
def _engine() -> Iterator[None]:
    with plain_decode.engine():
        yield


def reqs() -> list[Request]:
    return [
        request(rid="a", sampling_seed=1, temperature=0.7),
        request(rid="b", sampling_seed=2, temperature=0.0),
        request(rid="c", sampling_seed=3, temperature=1.3, top_k=4),
        request(rid="d", sampling_seed=4, top_p=0.6, min_p=0.05),
    ]


def forward(requests: list[Request], **asked: Any) -> tuple[list[int], Any, torch.Tensor]:
    """Return the drawn tokens of a batch at position 9, SGLang's output object, and the logits."""
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput  # late: see the filter

    from sglang_tetris.engine.sampler import TetrisSampler

    info = plain_decode.sampling_info(batch := Batch(reqs=requests), VOCAB)
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(0))[: len(requests)] * 2
    output = LogitsProcessorOutput(next_token_logits=logits.clone())
    token_ids = TetrisSampler()(
        output,
        info,
        return_logprob=bool(asked),
        top_logprobs_nums=asked.get("top_logprobs_nums", [0] * len(batch.reqs)),
        token_ids_logprobs=[None] * len(batch.reqs),
        positions=torch.full((len(requests),), 9),
        **{name: value for name, value in asked.items() if name == "logprob_logits"},
    )
    return token_ids.tolist(), output, logits


@pytest.mark.parametrize(
    ("cpu_engine", "backend", "is_ours"),
    [("1", "pytorch", True), ("0", "tetris", True), ("0", "pytorch", False)],
)
def test_it_serves_on_our_cpu_engine_and_where_it_is_asked_for(
    cpu_engine: str, backend: str, is_ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sglang_tetris.engine.sampler import serves  # late: see the filter

    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", cpu_engine)
    with get_context().override_server_args(sampling_backend=backend):
        assert serves() == is_ours


def test_a_batch_draws_each_row_from_its_own_filters_and_number() -> None:
    from sglang_tetris.engine.sampler import draw, filters_of  # late: see the filter

    drawn, _, logits = forward(reqs())

    filters = builders.filters(
        4,
        temperature=[0.7, 1.0, 1.3, 1.0],
        top_k=[builders.TOP_K_ALL, 1, 4, builders.TOP_K_ALL],
        top_p=[1.0, 1.0, 1.0, 0.6],
        min_p=[0.0, 0.0, 0.0, 0.05],
    )
    seeds, positions = torch.arange(1, 5), torch.full((4,), 9)
    assert drawn == core_draw(logits, filters, uniforms(seeds, positions)).tolist()
    info = plain_decode.sampling_info(Batch(reqs=reqs()), VOCAB)
    assert drawn == draw(logits, filters_of(info), seeds, positions).tolist()


def test_the_log_probability_of_what_was_drawn_is_at_the_rows_temperature() -> None:
    drawn, output, logits = forward(reqs(), top_logprobs_nums=[1, 0, 0, 2])

    scaled = logits / torch.tensor([0.7, 1.0, 1.3, 1.0])[:, None]
    expected = scaled.log_softmax(dim=-1)[range(4), drawn]
    assert torch.equal(output.next_token_logprobs, expected)
    assert [len(values) for values in output.next_token_top_logprobs_val] == [1, 0, 0, 2]


def test_log_probabilities_may_be_asked_of_other_logits() -> None:
    before_watermark = torch.zeros(4, VOCAB)

    drawn, output, _ = forward(
        reqs(), top_logprobs_nums=[0] * 4, logprob_logits=before_watermark.clone()
    )

    assert drawn == forward(reqs())[0]
    expected = before_watermark.log_softmax(dim=-1)[range(4), drawn]
    assert torch.equal(output.next_token_logprobs, expected)


def test_a_sampling_mask_names_the_tokens_that_could_have_been_drawn() -> None:
    masked = reqs()
    for req in masked[1:]:
        req.return_sampling_mask = True

    drawn, output, logits = forward(masked)

    mask = output.sampling_mask_output
    filters = builders.filters(
        4, temperature=[0.7, 1, 1.3, 1], top_k=[99, 1, 4, 99], top_p=[1, 1, 1, 0.6],
        min_p=[0, 0, 0, 0.05],
    )  # fmt: skip
    kept = kept_probs(filters.scale(logits).softmax(dim=-1), filters)
    for i, row in enumerate((1, 2, 3)):
        named = set(mask.token_ids[i, : mask.lengths[i]].tolist())
        assert named == set(kept[row].nonzero().flatten().tolist())
        assert drawn[row] in named
    shares = kept[range(4), drawn] / kept.sum(dim=-1)
    torch.testing.assert_close(mask.selected_logprobs, shares[1:].log())
    assert not mask.statuses.any()
