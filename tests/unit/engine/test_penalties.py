"""Penalties from the tokens themselves have the bits of SGLang's, which are stepped."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling import penaltylib
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from sglang_tetris.engine import penalties
from tests.support.stand_ins import Batch, Request, Tokenizer, request

VOCAB = 40
PENALIZERS = {
    penaltylib.BatchedFrequencyPenalizer,
    penaltylib.BatchedMinNewTokensPenalizer,
    penaltylib.BatchedPresencePenalizer,
    penaltylib.BatchedRepetitionPenalizer,
}
ALONE = [
    {"frequency_penalty": 0.3},
    {"frequency_penalty": -1.7},
    {"presence_penalty": 1.1},
    {"presence_penalty": -0.6},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.7},
    {"min_new_tokens": 12},
]


def penalised_by_sglang(logits: torch.Tensor, req: Request) -> torch.Tensor:
    """Return one request's logits after SGLang's penalizers saw its answer token by token."""
    batch = Batch(reqs=[req])
    stepped = penaltylib.BatchedPenalizerOrchestrator(VOCAB, batch, PENALIZERS)
    for token_id in req.output_ids:
        stepped.cumulate_output_tokens(torch.tensor([token_id]))
    added = torch.zeros(1, VOCAB)
    stepped.accumulate_additive_penalties(added)
    row = logits[None].add(added)
    factors = stepped.accumulate_scaling_penalties()
    if factors is not None:
        with torch.compiler.set_stance("force_eager"):  # SGLang compiles this at its first call
            penaltylib.repetition_penalty.apply_scaling_penalties(row, factors)
    return row[0]


def penalised(logits: torch.Tensor, reqs: Sequence[Request]) -> torch.Tensor:
    """Return logits [num_requests, vocab_size] after our penalties, all rows at once."""
    outputs = penalties.of_batch(reqs)
    logits = logits + penalties.additive(reqs, outputs, VOCAB)
    factors = penalties.scaling(reqs, outputs, VOCAB)
    if factors is not None:
        penalties.scale(logits, factors)
    return logits


def random_request(rng: random.Random) -> Request:
    return request(
        output=[rng.randrange(rng.choice([3, VOCAB])) for _ in range(rng.choice([0, 1, 7, 60]))],
        stops={rng.randrange(VOCAB) for _ in range(rng.randrange(3))},
        eos=rng.choice([None, 0, VOCAB - 1]),
        stop_token_ids=rng.choice([None, {5, 6}]),
        frequency_penalty=rng.choice([0.0, 0.1, 0.3, 2.0, -0.7]),
        presence_penalty=rng.choice([0.0, 0.2, 1.5, -2.0]),
        repetition_penalty=rng.choice([1.0, 1.1, 0.6, 2.0]),
        min_new_tokens=rng.choice([0, 0, 1, 7, 8, 100]),
        max_new_tokens=200,
    )


def logits_of(seed: int, num_rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, VOCAB, generator=generator) * 5


@dataclass(kw_only=True)
class Info:
    """What ``update`` reads and writes of SGLang's sampling parameters of a batch."""

    penalizer_orchestrator: Any
    num_requests: int
    vocab_size: int = VOCAB
    acc_additive_penalties: Any = "left from the step before"
    acc_scaling_penalties: Any = "left from the step before"

    def __len__(self) -> int:
        return self.num_requests


def info(batch: Batch, num_requests: int | None = None) -> Info:
    return Info(
        penalizer_orchestrator=SimpleNamespace(batch=batch),
        num_requests=len(batch.reqs) if num_requests is None else num_requests,
    )


@pytest.mark.parametrize("params", ALONE, ids=lambda params: "{} {}".format(*[*params.items()][0]))
@pytest.mark.parametrize("num_tokens", [0, 1, 11, 12, 13, 100])
def test_each_penalty_has_sglangs_bits(params: dict[str, Any], num_tokens: int) -> None:
    rng = random.Random(num_tokens)
    req = request(output=[rng.randrange(9) for _ in range(num_tokens)], stops={2}, eos=3, **params)
    logits = logits_of(num_tokens, 1)

    changed = penalised(logits, [req])

    assert torch.equal(changed[0], penalised_by_sglang(logits[0], req))
    assert torch.equal(changed, logits) == (
        num_tokens >= 12 if "min_new_tokens" in params else num_tokens == 0
    )


@pytest.mark.parametrize("seed", range(60))
def test_mixed_requests_have_sglangs_bits_row_by_row(seed: int) -> None:
    rng = random.Random(seed)
    reqs = [random_request(rng) for _ in range(rng.randint(1, 6))]
    logits = logits_of(seed, len(reqs))

    changed = penalised(logits, reqs)

    for row, req in enumerate(reqs):
        assert torch.equal(changed[row], penalised_by_sglang(logits[row], req))


def test_penalties_by_hand() -> None:
    req = request(output=[4, 7, 4], frequency_penalty=0.5, presence_penalty=2.0)
    harsh = request(output=[7], repetition_penalty=2.0)
    outputs = penalties.of_batch([req, harsh])

    added = penalties.additive([req, harsh], outputs, VOCAB)
    factors = penalties.scaling([req, harsh], outputs, VOCAB)

    assert added[0].nonzero().flatten().tolist() == [4, 7]
    assert added[0, [4, 7]].tolist() == [-3.0, -2.5]
    assert not added[1].any()
    assert factors is not None
    assert factors[0].tolist() == [1.0] * VOCAB
    assert (factors[1] != 1).nonzero().flatten().tolist() == [7]
    logits = torch.tensor([[3.0, -3.0, 0.0]])
    penalties.scale(logits, torch.tensor([[2.0, 2.0, 2.0]]))
    assert logits.tolist() == [[1.5, -6.0, 0.0]]


def test_what_is_beyond_a_rows_tokens_is_not_penalised() -> None:
    reqs = [request(frequency_penalty=1.0, repetition_penalty=1.5)] * 2
    outputs = penalties.Outputs(
        token_ids=torch.tensor([[5, 5, -1], [-1, 5, -1]]),
        lens=[2, 1],
    )

    added = penalties.additive(reqs, outputs, VOCAB)
    factors = penalties.scaling(reqs, outputs, VOCAB)

    assert added.shape == (2, VOCAB)
    assert [row.nonzero().flatten().tolist() for row in added] == [[5], [5]]
    assert added[:, 5].tolist() == [-2.0, -1.0]
    assert factors is not None
    assert [(row != 1).nonzero().flatten().tolist() for row in factors] == [[5], [5]]


def test_a_row_has_the_same_penalties_alone_and_in_company() -> None:
    rng = random.Random(7)
    reqs = [random_request(rng) for _ in range(20)]
    logits = logits_of(7, 20)
    together = penalised(logits, reqs)

    for row, req in enumerate(reqs):
        assert torch.equal(penalised(logits[row : row + 1], [req])[0], together[row])


def test_nothing_is_scaled_where_no_request_asks_for_it() -> None:
    reqs = [request(output=[1, 2], presence_penalty=1.0), request()]

    assert penalties.scaling(reqs, penalties.of_batch(reqs), VOCAB) is None


def test_every_ending_token_waits_for_the_least_number_of_tokens() -> None:
    req = request(output=[9] * 4, min_new_tokens=5, stops={2, 30}, stop_token_ids={11}, eos=3)
    req.tokenizer = Tokenizer(eos_token_id=3, additional_stop_token_ids={4})
    req.sampling_params.ignore_eos = True  # as in SGLang, that makes no difference here

    early = penalties.additive([req], penalties.of_batch([req]), VOCAB)
    req.output_ids.append(9)
    in_time = penalties.additive([req], penalties.of_batch([req]), VOCAB)

    assert (early[0] == -torch.inf).nonzero().flatten().tolist() == [2, 3, 4, 11, 30]
    assert not in_time.any()


def test_a_request_without_any_ending_token_may_ask_for_tokens_too() -> None:
    req = request(min_new_tokens=5)
    req.tokenizer = req.eos_token_ids = None

    assert not penalties.additive([req], penalties.of_batch([req]), VOCAB).any()


@pytest.mark.parametrize("params", [{}, {"temperature": 0.5, "top_k": 3, "logit_bias": {"3": 1.0}}])
def test_a_request_that_asks_for_nothing_is_not_penalised(params: dict[str, Any]) -> None:
    assert not penalties.is_penalised(request(**params).sampling_params)


@pytest.mark.parametrize("params", ALONE, ids=lambda params: next(iter(params)))
def test_a_request_that_asks_for_anything_is(params: dict[str, Any]) -> None:
    assert penalties.is_penalised(request(**params).sampling_params)


# ``prepare`` and ``apply``: the two ways of a plain forward.


@pytest.mark.parametrize("is_tetris", [True, False])
def test_a_retracted_request_keeps_its_penalties_at_its_second_prefill(is_tetris: bool) -> None:
    req = request(
        output=[4, 4, 9],
        eos=3,
        frequency_penalty=0.3,
        presence_penalty=0.2,
        repetition_penalty=1.2,
        min_new_tokens=4,
    )
    batch = Batch(reqs=[req, request(output=[8])], forward_mode=ForwardMode.EXTEND)
    batch.spec_algorithm = SpeculativeAlgorithm.EAGLE if is_tetris else SpeculativeAlgorithm.NONE
    sampling_info = info(batch)

    penalties.prepare(sampling_info)

    logits = logits_of(0, 2)
    changed = logits + sampling_info.acc_additive_penalties
    penalties.scale(changed, sampling_info.acc_scaling_penalties)
    assert torch.equal(changed[0], penalised_by_sglang(logits[0], req))
    assert torch.equal(changed[1], logits[1])
    assert changed[0, 3] == -torch.inf


def test_a_plain_decode_is_penalised_for_all_that_was_answered() -> None:
    reqs = [request(output=[4, 4], frequency_penalty=0.3), request(output=[5, 6, 7])]
    sampling_info = info(Batch(reqs=reqs))

    penalties.prepare(sampling_info)

    assert torch.equal(
        sampling_info.acc_additive_penalties,
        penalties.additive(reqs, penalties.of_batch(reqs), VOCAB),
    )
    assert sampling_info.acc_scaling_penalties is None


def test_a_verification_sees_to_its_own_rows() -> None:
    batch = Batch(reqs=[request(output=[4], frequency_penalty=0.3, repetition_penalty=2.0)])
    batch.spec_algorithm = SpeculativeAlgorithm.EAGLE
    sampling_info = info(batch)

    penalties.prepare(sampling_info)

    assert sampling_info.acc_additive_penalties is None
    assert sampling_info.acc_scaling_penalties is None


@pytest.mark.parametrize("reqs", [[], [request(output=[4])]], ids=["no request", "a plain one"])
def test_without_penalties_what_was_left_is_taken_away(reqs: list[Request]) -> None:
    sampling_info = info(Batch(reqs=reqs))

    penalties.prepare(sampling_info)

    assert sampling_info.acc_additive_penalties is None
    assert sampling_info.acc_scaling_penalties is None


def test_a_batch_that_is_not_that_of_its_parameters_is_a_bug() -> None:
    batch = Batch(reqs=[request(presence_penalty=1.0)])

    with pytest.raises(AssertionError, match="one row of parameters"):
        penalties.prepare(info(batch, num_requests=2))


def test_both_ways_of_a_plain_forward_have_the_same_bits() -> None:
    reqs = [
        request(output=[4, 4, 9], frequency_penalty=0.6, presence_penalty=0.8),
        request(output=[4, 5], repetition_penalty=1.3, frequency_penalty=0.3),
        request(output=[]),
    ]
    batch = Batch(reqs=reqs)
    orchestrator = penaltylib.BatchedPenalizerOrchestrator(VOCAB, batch, PENALIZERS)
    sampling_info = info(batch)
    logits = logits_of(0, 3)

    applied = logits.clone()
    penalties.apply(orchestrator, applied)
    penalties.prepare(sampling_info)
    prepared = logits + sampling_info.acc_additive_penalties
    penalties.scale(prepared, sampling_info.acc_scaling_penalties)

    assert torch.equal(applied, prepared)
    assert torch.equal(applied[2], logits[2])
    assert not torch.equal(applied[:2], logits[:2])
