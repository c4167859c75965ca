"""SGLang's own speculative algorithms on the CPU engine say what the plain server says.

They are greedy there whatever the temperature, so only greedy text is compared. A random model
serves, and drafts for itself; SGLang's draft never sees a prompt's first token, so it errs often.
"""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from sglang_tetris.cli.launch import running_server
from tests.support.generate import generate
from tests.support.tiny_model import SERVER_ARGS, tiny_model

pytestmark = [pytest.mark.sglang, pytest.mark.e2e, pytest.mark.timeout(600)]

DRAFT = ("--speculative-draft-model-path", "{model}", "--speculative-num-steps", "3")
ARGS = {
    "chain": ("STANDALONE", *DRAFT, "--speculative-eagle-topk", "1"),
    "tree": (
        *("STANDALONE", *DRAFT, "--speculative-eagle-topk", "2"),
        *("--speculative-num-draft-tokens", "6"),
    ),
    "n-grams": ("NGRAM", "--speculative-num-draft-tokens", "6"),
}
PARAMS = {"temperature": 0, "max_new_tokens": 40, "ignore_eos": True}
REQUESTS: list[dict[str, Any]] = [
    {"input_ids": [1 + i, 5, 9, 5, 9, 2 * i], "sampling_params": PARAMS} for i in range(4)
] * 2  # the second time the prompts are cached


def answers(*args: str) -> list[dict[str, Any]]:
    """Return what a server answers to requests that come and go."""
    common = ("--model-path", str(tiny_model()), *SERVER_ARGS, "--max-total-tokens", "8000")
    with running_server([*common, "--log-level", "warning", *args], timeout_s=400) as server:
        return generate(server.base_url, REQUESTS, delay_s=0.05)


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """Return the token ids without speculation."""
    return [reply["output_ids"] for reply in answers("--no-speculation")]


@pytest.mark.parametrize("kind", ARGS)
def test_its_text_is_the_plain_servers(plain: list[list[int]], kind: str) -> None:
    if kind == "n-grams" and shutil.which("c++") is None:
        pytest.skip("SGLang compiles its n-gram corpus")
    args = [word.format(model=tiny_model()) for word in ARGS[kind]]

    replies = answers("--speculative-algorithm", *args)

    assert [reply["output_ids"] for reply in replies] == plain
    assert sum(reply["meta_info"]["spec_num_correct_drafts"] for reply in replies) > 20
