"""At temperature 1 a TETRIS server's tokens have the law that transformers computes for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.support import transforms
from tests.support.generate import generate
from tests.support.servers import Started, start
from tests.support.tiny_model import SERVER_ARGS, VOCAB, tiny_model, token_probs

pytestmark = [pytest.mark.sglang, pytest.mark.e2e, pytest.mark.timeout(600)]

FEW, MANY = 240, 1200  # requests
NEW_TOKENS = 96
PROMPT_LEN = 3
SELECTED = ("--tetris-capacity", "96")  # of three drafts for each of 48 requests at once
# What a wrong rule says depends on what was verified, so for one answer in every run: all of it.
UNSELECTED = ("--tetris-draft-tokens", "1", "--tetris-capacity", "48")
# More threads would only wait for each other: the model is that small.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

ACCEPTED, REJECTED = 0.01, 1e-6


@dataclass(frozen=True)
class Spoken:
    """What a server answered to requests with seeds of their own."""

    points: torch.Tensor  # [num_requests, NEW_TOKENS]; uniform and independent if all is right
    drafted: float  # share of the tokens that were accepted drafts

    @property
    def chances(self) -> tuple[float, float]:
        """Return the chance of points so uneven, and of neighbours so dependent."""
        return (
            transforms.chance_of_uniform(self.points),
            transforms.chance_of_independent(self.points),
        )


def tiny_server(kind: str, directory: Path, *args: str) -> AbstractContextManager[Started]:
    return start(kind, directory, *SERVER_ARGS, *args, environ=ONE_THREAD, model=tiny_model())


def speak(started: Started, num_requests: int) -> Spoken:
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(VOCAB, (num_requests, PROMPT_LEN), generator=generator)
    params = {"temperature": 1.0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    replies = generate(
        started.base_url,
        [
            {"input_ids": prompt, "sampling_params": params | {"sampling_seed": seed}}
            for seed, prompt in enumerate(prompts.tolist())
        ],
    )
    token_ids = torch.tensor([reply["output_ids"] for reply in replies])
    assert token_ids.shape == (num_requests, NEW_TOKENS)
    texts = torch.cat((prompts, token_ids), dim=1)
    probs = token_probs(texts[:, :-1])[:, PROMPT_LEN - 1 :]
    num_drafted = sum(reply["meta_info"]["spec_num_correct_drafts"] for reply in replies)
    return Spoken(
        points=transforms.points(probs, token_ids, seed=1),
        drafted=num_drafted / token_ids.numel(),
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """Run a server that drafts with the target itself: right about every second time."""
    directory = tmp_path_factory.mktemp("law")
    with tiny_server("self", directory, *SELECTED) as started:
        yield started


@pytest.fixture(scope="module", params=[FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def spoken(server: Started, request: pytest.FixtureRequest) -> Spoken:
    """Return more than 20,000 tokens, or 100,000."""
    return speak(server, request.param)


def test_more_than_a_third_of_the_tokens_were_drafted(spoken: Spoken) -> None:
    assert spoken.drafted > 1 / 3


def test_each_token_has_the_targets_law(spoken: Spoken) -> None:
    of_uniform, _ = spoken.chances

    assert of_uniform > ACCEPTED


def test_each_token_is_independent_of_the_one_before_given_the_prefix(spoken: Spoken) -> None:
    _, of_independent = spoken.chances

    assert of_independent > ACCEPTED


@pytest.mark.parametrize("rule", ["accepted_by_draft", "shared_coin", "bonus_of_parent"])
def test_a_wrong_rule_is_rejected(tmp_path: Path, rule: str) -> None:
    with tiny_server(f"self+{rule}", tmp_path, *UNSELECTED) as bent:
        spoken = speak(bent, FEW)

    assert min(spoken.chances) < REJECTED
