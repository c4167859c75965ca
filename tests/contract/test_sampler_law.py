"""Our draw has the law of SGLang's own sampling functions, option by option and pair by pair."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from sglang_tetris.core.sampling import Filters, kept_probs
from sglang_tetris.engine import penalties
from tests.support import chi_square, plain_decode
from tests.support.stand_ins import Batch, Request, request

pytestmark = [
    pytest.mark.sglang,
    # What SGLang and its dependencies say of themselves while they are imported.
    pytest.mark.filterwarnings("ignore:Only CUDA", "ignore::DeprecationWarning"),
]

VOCAB = 24
NUM_DRAWS = 20_000
ANSWERED = [16, 5, 5, 9, 21]  # so far, for the penalties; two of them are likely
OPTIONS: dict[str, Any] = {
    "temperature": 0.7,
    "top_k": 9,
    "top_p": 0.85,
    "min_p": 0.08,
    "frequency_penalty": 0.6,
    "presence_penalty": -1.2,
    "repetition_penalty": 1.5,
    "logit_bias": {"3": 2.0, "9": -1.5, "20": -100.0},
}
SETS = [names for count in (0, 1, 2) for names in itertools.combinations(OPTIONS, count)]
SETS += [tuple(OPTIONS)]
by_set = pytest.mark.parametrize("names", SETS, ids=lambda names: " and ".join(names) or "nothing")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Draws of one row, many times over."""

    support: set[int]  # tokens that could have been drawn
    counts: torch.Tensor  # [vocab_size]


@pytest.fixture(scope="module", autouse=True)
def _engine() -> Iterator[None]:
    with plain_decode.engine():
        yield


def raw_logits() -> torch.Tensor:
    return torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(11)) * 1.5


def asking(names: tuple[str, ...]) -> tuple[Request, Any]:
    """Return a request with these options, and SGLang's parameters of a batch of it alone."""
    req = request(output=ANSWERED, **{name: OPTIONS[name] for name in names})
    batch = Batch(reqs=[req])
    info = plain_decode.sampling_info(batch, VOCAB)
    for token_id in req.output_ids:
        info.penalizer_orchestrator.cumulate_output_tokens(torch.tensor([token_id]))
    return req, info.copy_for_forward()


@functools.cache
def sglangs(names: tuple[str, ...]) -> Sample:
    """Draw with SGLang's penalties, logit bias, temperature and filters (layers/sampler.py)."""
    from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch

    _, info = asking(names)
    logits = raw_logits()
    info.apply_logits_bias(logits)
    logits.div_(info.temperatures)
    torch.manual_seed(1)
    drawn, weights, token_ids, _ = top_k_top_p_min_p_sampling_from_probs_torch(
        logits.softmax(dim=-1).repeat(NUM_DRAWS, 1),
        info.top_ks.expand(NUM_DRAWS),
        info.top_ps.expand(NUM_DRAWS),
        info.min_ps.expand(NUM_DRAWS),
        info.need_min_p_sampling,
        None,
        torch.zeros(NUM_DRAWS, dtype=torch.int64),
        return_filtered_probs=True,
        max_top_k=info.max_top_k,
    )
    return Sample(
        support=set(token_ids[0][weights[0] > 0].tolist()),
        counts=drawn.long().bincount(minlength=VOCAB),
    )


def prepared(names: tuple[str, ...]) -> tuple[torch.Tensor, Filters]:
    """Return the logits of one row as we process them, and its filters."""
    from sglang_tetris.engine.sampler import filters_of

    req, info = asking(names)
    outputs = penalties.of_batch([req])
    logits = raw_logits() + penalties.additive([req], outputs, VOCAB)
    factors = penalties.scaling([req], outputs, VOCAB)
    if factors is not None:
        penalties.scale(logits, factors)
    if info.logit_bias is not None:
        logits += info.logit_bias
    return logits, filters_of(info)


def drawn_by_us(logits: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Return the counts of draws with as many seeds, at one position."""
    from sglang_tetris.engine.sampler import draw

    drawn = draw(
        logits.expand(NUM_DRAWS, VOCAB),
        filters.of_rows(torch.zeros(NUM_DRAWS, dtype=torch.int64)),
        torch.arange(NUM_DRAWS),
        torch.full((NUM_DRAWS,), 123),
    )
    return drawn.bincount(minlength=VOCAB)


@functools.cache
def ours(names: tuple[str, ...]) -> Sample:
    logits, filters = prepared(names)
    kept = kept_probs(filters.scale(logits).softmax(dim=-1), filters)[0]
    return Sample(
        support=set(kept.nonzero().flatten().tolist()), counts=drawn_by_us(logits, filters)
    )


@by_set
def test_the_same_tokens_can_be_drawn(names: tuple[str, ...]) -> None:
    assert ours(names).support == sglangs(names).support


@by_set
def test_the_draws_have_the_same_law(names: tuple[str, ...]) -> None:
    left, right = ours(names), sglangs(names)

    assert int(left.counts.sum()) == int(right.counts.sum()) == NUM_DRAWS
    assert set(left.counts.nonzero().flatten().tolist()) <= left.support
    assert chi_square.of_same_law(left.counts, right.counts) > 0.001


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p"])
def test_an_option_that_is_off_by_a_tenth_has_another_law(name: str) -> None:
    field = {"temperature": "temperatures"}.get(name, f"{name}s")
    logits, filters = prepared((name,))
    value = getattr(filters, field)
    off = dataclasses.replace(filters, **{field: (value * (1.5 if name == "min_p" else 0.9))})

    counts = drawn_by_us(logits, off)

    assert chi_square.of_same_law(counts, sglangs((name,)).counts) < 1e-6


@pytest.mark.parametrize(
    "name", ["frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"]
)
def test_without_a_penalty_or_bias_the_law_is_another(name: str) -> None:
    counts = drawn_by_us(raw_logits(), prepared(())[1])

    assert chi_square.of_same_law(counts, sglangs((name,)).counts) < 1e-6


def test_a_top_p_that_counts_the_token_itself_has_another_law() -> None:
    """Kept are the tokens up to which there is no more than top_p, and not one more."""
    logits, filters = prepared(("top_p",))
    falling, token_ids = logits.softmax(dim=-1)[0].sort(descending=True)
    cut = token_ids[falling.cumsum(0) > filters.top_ps]
    strict = logits.index_fill(1, cut, -torch.inf)

    counts = drawn_by_us(strict, prepared(())[1])

    assert chi_square.of_same_law(counts, sglangs(("top_p",)).counts) < 1e-6


def test_a_top_p_of_what_top_k_left_has_another_law() -> None:
    """SGLang's takes both from the whole distribution."""
    logits, filters = prepared(("top_k", "top_p"))
    kept = kept_probs(logits.softmax(dim=-1), prepared(("top_k",))[1])
    renormalised = torch.where(kept > 0, logits, -torch.inf)

    counts = drawn_by_us(renormalised, filters)

    assert chi_square.of_same_law(counts, sglangs(("top_k", "top_p")).counts) < 1e-6
