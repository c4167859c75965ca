"""A KV pool too small for the load: requests are retracted and come back, prompts are chunked.

Tokens stay those of a server with room for all, and SGLang's own check at rest finds no leaked
slot (it would end the server, which ``running_server`` reports).
"""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from tests.support.generate import generate, greedy, outcome
from tests.support.servers import Servers, start

pytestmark = [pytest.mark.sglang, pytest.mark.e2e, pytest.mark.timeout(300)]

NEW_TOKENS = 70
PROMPTS = [
    f"{i}. A long list of animals: cat, dog, cow, horse, " + "ant, bee, " * 8 for i in range(4)
]
# Every other request samples with penalties, which must survive a retraction.
SAMPLED = {
    "temperature": 0.8,
    "top_p": 0.95,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.4,
    "min_new_tokens": 20,
}
RETRACT = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "9"}
# All four need 4 x (about 60 + 70) slots and the room that drafts reserve.
TINY = ("--max-total-tokens", "450", "--chunked-prefill-size", "32")


@pytest.mark.parametrize("kind", ["lookup", "lookup+overlap", "lm", "lm+overlap"])
def test_retraction_and_chunks_change_no_token(servers: Servers, tmp_path: Path, kind: str) -> None:
    requests = [
        greedy(
            prompt, NEW_TOKENS, ignore_eos=True, **(SAMPLED | {"sampling_seed": i}) if i % 2 else {}
        )
        for i, prompt in enumerate(PROMPTS)
    ]
    roomy = [outcome(reply) for reply in generate(servers.get("plain").base_url, requests)]

    with start(kind, tmp_path, *TINY, environ=RETRACT) as started:
        info = httpx.get(f"{started.base_url}/server_info", timeout=60).json()
        assert info["disable_overlap_schedule"] == ("overlap" not in kind)
        replies = generate(started.base_url, requests, delay_s=0.1)
        time.sleep(2)  # at rest: the memory check runs
        log = started.server.log.read_text()

    assert [outcome(reply) for reply in replies] == roomy
    assert log.count("retracted") >= 1, "nothing was retracted"
    assert "leak" not in log


def test_an_answer_runs_into_the_context_limit(servers: Servers, tmp_path: Path) -> None:
    """The deepest drafts allowed, at the end of a request's row of the slot table."""
    requests = [greedy("one, two, three, one, two, three,", 400, ignore_eos=True)] * 2
    plain = outcome(generate(servers.get("plain").base_url, requests[:1])[0])
    limits = ("--context-length", "128", "--allow-auto-truncate", "--tetris-draft-tokens", "7")

    with start("lookup", tmp_path, *limits) as started:
        replies = generate(started.base_url, requests)

    for reply in replies:
        text, tokens, finish_reason, num_tokens = outcome(reply)
        assert finish_reason["type"] == "length"
        assert 100 < num_tokens < 128
        assert plain[0].startswith(text)
        assert tokens == plain[1][:num_tokens]
