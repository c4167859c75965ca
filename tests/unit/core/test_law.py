"""Verified or decoded one by one, an answer has the same law: every combination is enumerated."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_tetris.core.acceptance import Acceptance, accept
from sglang_tetris.core.layout import VerifyLayout
from sglang_tetris.core.sampling import Filters, draw
from sglang_tetris.engine import penalties
from tests import builders, laws

COMMITTED = [3, laws.ROOT]  # answered before the empty prefix
END = 4  # the token that ends an answer
CHAIN = [-1, 0, 1]
TREE = [-1, -1, 0, 0, 2]
BUSH = [-1, -1, -1, 0, 1, 3]
# Trees and their capacity per request; where it binds, the likeliest of a whole batch are verified.
VERIFIED = [(CHAIN, 3), (CHAIN, 1), (TREE, 5), (TREE, 3), (BUSH, 4), (CHAIN, 0)]
EXACT, NOTICED = 1e-12, 1e-2  # largest difference in the probability of a text


@dataclass(frozen=True)
class Asked:
    """What a request asks of sampling."""

    temperature: float = 1.0
    top_k: int = laws.VOCAB
    top_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    logit_bias: dict[int, float] = field(default_factory=dict)
    has_grammar: bool = False


OPTIONS = {
    "nothing": Asked(),
    "cold": Asked(temperature=0.3),
    "hot": Asked(temperature=1.7),
    "greedy": Asked(top_k=1),
    "top-k": Asked(top_k=3),
    "top-p": Asked(top_p=0.7),
    "min-p": Asked(min_p=0.2),
    "frequency": Asked(frequency_penalty=0.8),
    "presence": Asked(presence_penalty=-0.9),
    "repetition": Asked(repetition_penalty=1.6),
    "bias": Asked(logit_bias={0: 1.5, 2: -2.0}),
    "at least": Asked(min_new_tokens=4),
    "grammar": Asked(has_grammar=True),
    "hot top-k": Asked(temperature=1.7, top_k=2),
    "cool top-p": Asked(temperature=0.6, top_p=0.9),
    "top-p min-p": Asked(top_p=0.9, min_p=0.1),
    "frequency presence": Asked(frequency_penalty=0.5, presence_penalty=0.4),
    "repetition top-p": Asked(repetition_penalty=1.3, top_p=0.8),
    "grammar at least": Asked(has_grammar=True, min_new_tokens=5),
    "bias grammar": Asked(has_grammar=True, logit_bias={1: 2.0}, temperature=1.7),
}


def seeded_table(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (laws.NUM_PREFIXES, laws.VOCAB)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


TARGET_LOGITS = seeded_table(0)
DRAFT_PROBS = (TARGET_LOGITS + 0.7 * seeded_table(1)).softmax(dim=-1)  # right more often than not


@functools.cache
def steps_of(verified: int, rule: laws.AcceptanceRule) -> list[laws.Step]:
    """Return the steps of one kind of verification; they depend on no option."""
    shape, capacity = VERIFIED[verified]
    return laws.steps(shape, capacity, DRAFT_PROBS, rule)


def processed(asked: Asked) -> tuple[torch.Tensor, Filters]:
    """Return what is drawn from after each prefix, in the order of a plain decode."""
    logits = TARGET_LOGITS.clone()
    answers = [COMMITTED + list(laws.tokens(prefix)) for prefix in range(laws.NUM_PREFIXES)]
    width = max(map(len, answers))
    outputs = penalties.Outputs(
        token_ids=torch.tensor([answer + [-1] * (width - len(answer)) for answer in answers]),
        lens=[len(answer) for answer in answers],
    )
    req: Any = SimpleNamespace(
        sampling_params=SimpleNamespace(**vars(asked), stop_token_ids=None),
        eos_token_ids={END},
        tokenizer=None,
    )
    reqs = [req] * len(answers)
    logits += penalties.additive(reqs, outputs, laws.VOCAB)
    factors = penalties.scaling(reqs, outputs, laws.VOCAB)
    if factors is not None:
        penalties.scale(logits, factors)
    if asked.has_grammar:
        for prefix, answer in enumerate(answers):
            forbidden = [t for t in range(laws.VOCAB) if (t + sum(answer)) % 3 == 0]
            logits[prefix, forbidden] = -torch.inf
    for token, bias in asked.logit_bias.items():
        logits[:, token] += bias
    return logits, builders.filters(
        len(answers),
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        min_p=asked.min_p,
    )


def distances(
    asked: Asked,
    chances: Callable[[laws.Step], torch.Tensor],
    rule: laws.AcceptanceRule = accept,
) -> Iterator[float]:
    """Yield how far each kind of verification is from decoding token by token."""
    plain = laws.plain_law(laws.row_laws(*processed(asked)))
    assert float(plain.sum()) == pytest.approx(1.0, abs=EXACT)
    for verified in range(len(VERIFIED)):
        law = laws.emitted_law(steps_of(verified, rule), chances)
        yield float((law - plain).abs().max())


@pytest.mark.parametrize("asked", OPTIONS.values(), ids=OPTIONS)
def test_independent_draws_leave_the_law_alone(asked: Asked) -> None:
    of_rows = laws.row_laws(*processed(asked))

    far = distances(asked, lambda step: laws.apart([of_rows[p] for p in step.prefixes]))

    assert all(distance < EXACT for distance in far)


@pytest.mark.parametrize("asked", OPTIONS.values(), ids=OPTIONS)
def test_rows_at_one_position_may_share_a_number(asked: Asked) -> None:
    numbers = laws.Numbers(*processed(asked))

    far = distances(asked, lambda step: numbers.chances(step, step.depths))

    assert all(distance < EXACT for distance in far)


@pytest.mark.parametrize("asked", OPTIONS.values(), ids=OPTIONS)
def test_with_a_number_per_position_the_text_is_that_of_plain_decoding(asked: Asked) -> None:
    logits, filters = processed(asked)
    generator = torch.Generator().manual_seed(2)
    for numbers in torch.rand(60, laws.NUM_EMITTED, generator=generator, dtype=torch.float64):
        drawn = [draw(logits, filters, number.expand(len(logits))).tolist() for number in numbers]

        texts = {laws.text(steps_of(i, accept), drawn) for i in range(len(VERIFIED))}

        assert texts == {laws.plain_text(drawn)}


SAMPLED = {name: asked for name, asked in OPTIONS.items() if name != "greedy"}


@pytest.mark.parametrize("asked", SAMPLED.values(), ids=SAMPLED)
def test_acceptance_by_the_drafts_probability_is_noticed(asked: Asked) -> None:
    of_rows = laws.row_laws(*processed(asked))

    def by_coins(step: laws.Step) -> torch.Tensor:
        drawn = []
        for prefix, children in zip(step.prefixes, step.children, strict=True):
            law = of_rows[prefix]
            for token in reversed(children):  # the first child's coin is tossed first
                accepted = DRAFT_PROBS[prefix, token]
                law = (1 - accepted) * law
                law[token] += accepted
            drawn.append(law)
        return laws.apart(drawn)

    far = distances(asked, by_coins)

    assert any(distance > NOTICED for distance in far)


@pytest.mark.parametrize("asked", SAMPLED.values(), ids=SAMPLED)
def test_a_number_for_two_rows_of_a_path_is_noticed(asked: Asked) -> None:
    numbers = laws.Numbers(*processed(asked))

    def as_the_parent(step: laws.Step) -> torch.Tensor:
        return numbers.chances(step, [max(depth - 1, 0) for depth in step.depths])

    far = distances(asked, as_the_parent)

    assert any(distance > NOTICED for distance in far)


@pytest.mark.parametrize("asked", SAMPLED.values(), ids=SAMPLED)
def test_a_bonus_from_the_parents_row_is_noticed(asked: Asked) -> None:
    of_rows = laws.row_laws(*processed(asked))

    far = distances(
        asked,
        lambda step: laws.apart([of_rows[p] for p in step.prefixes]),
        accept_with_bonus_of_parent,
    )

    assert any(distance > NOTICED for distance in far)


def accept_with_bonus_of_parent(layout: VerifyLayout, sampled: torch.Tensor) -> Acceptance:
    right = accept(layout, sampled)
    last = right.num_correct_drafts[:, None]
    row = right.accepted_rows.gather(1, last).squeeze(1)
    row = torch.where(layout.parents[row] < 0, row, layout.parents[row])
    return Acceptance(
        num_correct_drafts=right.num_correct_drafts,
        accept_lens=right.accept_lens,
        accepted_rows=right.accepted_rows,
        token_ids=right.token_ids.scatter(1, last, sampled[row][:, None]),
        bonus_token_ids=sampled[row],
    )
