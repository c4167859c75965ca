"""What the sampler, the seeds and the penalties lean on in SGLang is as we know it."""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_tetris.core.noise import next_seed
from sglang_tetris.core.sampling import GREEDY_TOP_K
from sglang_tetris.engine import compat, penalties
from sglang_tetris.engine.seeds import give_seed
from tests import builders
from tests.support import plain_decode
from tests.support.stand_ins import Batch, request

pytestmark = [
    pytest.mark.sglang,
    # What SGLang and its dependencies say of themselves while they are imported.
    pytest.mark.filterwarnings("ignore:Only CUDA", "ignore::DeprecationWarning"),
]

VOCAB = 12


def body_of(function: Callable[..., Any]) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def calls_to(tree: ast.AST, name: str) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == name
    ]


def assigned(tree: ast.AST) -> dict[str, str]:
    """Return what is assigned under ``tree``, by target; the last one counts."""
    return {
        ast.unparse(target): ast.unparse(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
    }


@pytest.mark.parametrize(
    ("target", "parameters"),
    [
        (compat.SEND_ONE, ["self", "tokenized_obj"]),
        (compat.SEND_BATCH, ["self", "tokenized_objs"]),
        (compat.SAMPLING_INFO, ["self", "batch", "vocab_size"]),
        (compat.UPDATE_PENALTIES, ["self"]),
        (compat.SCALE, ["logits", "scaling_penalties"]),
    ],
    ids=["send one", "send a batch", "sampling parameters", "penalties", "scale"],
)
def test_the_hooked_functions_take_what_we_pass(target: str, parameters: list[str]) -> None:
    assert list(inspect.signature(compat.resolve(target)).parameters) == parameters


# Seeds.


def test_sampling_parameters_have_a_number_of_samples_and_a_seed() -> None:
    fields = {field.name: field for field in msgspec.structs.fields(SamplingParams)}

    assert fields["n"].default == 1
    assert fields["sampling_seed"].default is None


def test_a_copy_of_sampling_parameters_is_equal_and_apart() -> None:
    params = SamplingParams(temperature=0.0, n=3, sampling_seed=5, stop=["x"], top_p=0.9)
    params.normalize(SimpleNamespace(encode=lambda text, **_: [1]))

    own = copy.copy(params)
    own.sampling_seed = 6

    assert params.sampling_seed == 5
    assert {
        name: getattr(own, name) for name in own.__struct_fields__ if name != "sampling_seed"
    } == {name: getattr(params, name) for name in own.__struct_fields__ if name != "sampling_seed"}


def test_the_samples_of_one_request_are_seeded_one_after_the_other() -> None:
    shared = SamplingParams(n=3, sampling_seed=5)
    samples = [SimpleNamespace(sampling_params=shared) for _ in range(3)]

    for sample in samples:
        give_seed(sample)

    seeds = [sample.sampling_params.sampling_seed for sample in samples]
    assert seeds == [5, next_seed(5), next_seed(next_seed(5))]
    assert all(isinstance(sample.sampling_params, SamplingParams) for sample in samples)


@pytest.mark.parametrize("seed", [-(2**63), 2**63 - 1])
def test_sglang_takes_every_seed_that_we_give(seed: int) -> None:
    SamplingParams(sampling_seed=seed).verify(VOCAB)


def test_samples_share_one_parameter_object_until_they_are_sent() -> None:
    """Were each to get a copy, all would have the given seed: ``give_seed`` moves on a shared one."""
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    tree = body_of(TokenizerManager._handle_batch_request)
    (loop,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For) and ast.unparse(node.iter) == "range(obj.parallel_sample_num)"
    ]

    assert assigned(loop)["tokenized_obj"] == "copy.copy(tokenized_objs[i])"  # a shallow one
    assert not [target for target in assigned(loop) if target.endswith("sampling_params")]
    assert [ast.unparse(call) for call in calls_to(loop, "_send_one_request")] == [
        "self._send_one_request(tokenized_obj)"
    ]


def test_warming_the_prefix_cache_has_parameters_of_its_own() -> None:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    tree = body_of(TokenizerManager._handle_batch_request)
    (loop,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.For)
        and "tokenized_obj.sampling_params.max_new_tokens" in assigned(node)
    ]

    own = assigned(loop)["tokenized_obj.sampling_params"]
    assert own == "copy.copy(tokenized_obj.sampling_params)"
    assert len(calls_to(loop, "_send_one_request")) == 1


def test_a_batch_is_sent_at_once_only_if_each_request_has_one_sample() -> None:
    from sglang.srt.managers.tokenizer_manager import TokenizerManager

    tree = body_of(TokenizerManager._handle_batch_request)
    (branch,) = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and ast.unparse(node.test) == "getattr(obj, 'parallel_sample_num', 1) == 1"
    ]

    assert len(calls_to(tree, "_send_batch_request")) == 1
    assert sum(len(calls_to(each, "_send_batch_request")) for each in branch.body) == 1


def test_seeds_follow_their_requests_through_filters_and_merges() -> None:
    with plain_decode.engine():
        left = plain_decode.sampling_info(
            batch := Batch(reqs=[request(rid=str(i), sampling_seed=i) for i in range(3)]), VOCAB
        )
        right = plain_decode.sampling_info(
            other := Batch(reqs=[request(rid="9", sampling_seed=9)]), VOCAB
        )
        left.filter_batch([0, 2], torch.tensor([0, 2]))
        left.merge_batch(right)
        forward = left.copy_for_forward()

    assert left.sampling_seed.tolist() == [0, 2, 9]
    assert forward.sampling_seed.tolist() == [0, 2, 9]
    assert batch.reqs
    assert other.reqs


def test_the_placeholder_that_adds_the_seeds_is_called_for_every_batch() -> None:
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    tree = body_of(SamplingBatchInfo.from_schedule_batch)

    assert [ast.unparse(call) for call in calls_to(tree, "adjusted_from_schedule_batch")] == [
        "ret.adjusted_from_schedule_batch(batch, vocab_size)"
    ]


def test_a_prefill_draws_at_the_position_of_its_last_token() -> None:
    """As a decode does at its only one: the noise is that of the row's input token."""
    from sglang.srt.model_executor.model_runner import ModelRunner

    (call,) = calls_to(body_of(ModelRunner.sample), "sampler")

    assert ast.unparse(call.args[5]) == (
        "forward_batch.positions if forward_batch.forward_mode.is_decode() "
        "else forward_batch.seq_lens - 1"
    )


# Filters.


@pytest.mark.parametrize("temperature", [0.0, 1e-7])
def test_sglang_makes_a_temperature_of_0_a_top_k_of_1(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=50)

    assert params.top_k == GREEDY_TOP_K
    assert params.temperature == 1.0


def test_the_filters_have_the_types_that_the_tests_use() -> None:
    from sglang_tetris.engine.sampler import filters_of

    with plain_decode.engine():
        batch = Batch(reqs=[request(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1), request()])
        theirs = filters_of(plain_decode.sampling_info(batch, VOCAB))

    expected = builders.filters(
        2,
        temperature=[0.5, 1.0],
        top_k=[7, builders.TOP_K_ALL],
        top_p=[0.9, 1.0],
        min_p=[0.1, 0.0],
    )
    for name in ("temperatures", "top_ks", "top_ps", "min_ps"):
        left, right = getattr(theirs, name), getattr(expected, name)
        assert torch.equal(left, right)
        assert left.dtype == right.dtype


# Penalties.


def test_sglang_forgets_the_penalties_of_a_retracted_request() -> None:
    """When it remembers them, the hook on ``update_penalties`` can go."""
    with plain_decode.engine():
        batch = Batch(reqs=[request(output=[4, 4], frequency_penalty=1.0)])
        info = plain_decode.sampling_info(batch, VOCAB)  # made at the second prefill
        info.update_penalties()
        theirs = info.acc_additive_penalties
        penalties.prepare(info)

    assert not theirs.any()
    assert info.acc_additive_penalties.nonzero().tolist() == [[0, 4]]


@pytest.mark.parametrize("is_ours", [True, False])
def test_only_our_verification_leaves_the_batchs_penalties_to_its_rows(is_ours: bool) -> None:
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from sglang_tetris.engine.algorithm import TetrisLookupAlgorithm
    from sglang_tetris.engine.registration import _update_penalties

    with plain_decode.engine():
        batch = Batch(reqs=[request(output=[4, 4], frequency_penalty=1.0)])
        ours = TetrisLookupAlgorithm.__new__(TetrisLookupAlgorithm)
        batch.spec_algorithm = ours if is_ours else SpeculativeAlgorithm.STANDALONE
        info = plain_decode.sampling_info(batch, VOCAB)
        seen: list[Any] = []

        _update_penalties(seen.append, info)

    assert seen == ([] if is_ours else [info])


def test_penalties_are_prepared_for_each_forward_and_nowhere_else() -> None:
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    tree = body_of(SamplingBatchInfo)

    assert len(calls_to(tree, "update_penalties")) == 1
    assert len(calls_to(body_of(SamplingBatchInfo.copy_for_forward), "update_penalties")) == 1


def test_penalties_scale_as_sglangs_do() -> None:
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(0))
    logits[0, 0], logits[1] = 0.0, -torch.inf
    factors = torch.rand(5, VOCAB, generator=torch.Generator().manual_seed(1)) + 0.5
    theirs = logits.clone()
    with torch.compiler.set_stance("force_eager"):
        compat.resolve(compat.SCALE)(theirs, factors)

    penalties.scale(logits, factors)

    assert torch.equal(logits, theirs)


def test_the_orchestrator_knows_the_batch_it_was_made_for() -> None:
    with plain_decode.engine():
        batch = Batch(reqs=[request(presence_penalty=1.0)])
        info = plain_decode.sampling_info(batch, VOCAB)

    assert info.penalizer_orchestrator.batch is batch
