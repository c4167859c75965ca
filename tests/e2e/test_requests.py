"""What a request may ask of SGLang keeps its meaning under TETRIS."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.support.generate import generate, greedy, outcome
from tests.support.servers import Servers

pytestmark = [pytest.mark.sglang, pytest.mark.e2e, pytest.mark.timeout(600)]

COUNTING = "1, 2, 3, 4, 5, 6, 7, 8,"
STORY = "Once upon a time there was a fox who"
SCHEMA = json.dumps(
    {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
)

GREEDY = {
    "one token": greedy(COUNTING, 1),
    "two tokens": greedy(COUNTING, 2),
    "stop string inside an accepted run": greedy(COUNTING, 64, stop=["13"]),
    "stop token": greedy(COUNTING, 64, stop_token_ids=[28]),  # a comma
    "ignored end": greedy("The end.", 48, ignore_eos=True),
    "long": greedy(STORY, 200),
    "top log-probabilities": greedy(STORY, 24) | {"top_logprobs_num": 3},
    "prompt log-probabilities": greedy(STORY, 8) | {"logprob_start_len": 0},
    "log-probabilities of tokens": greedy(STORY, 16) | {"token_ids_logprob": [1, 28, 198]},
    "hidden states": greedy(COUNTING, 12) | {"return_hidden_states": True},
}
# Not greedy on the raw logits: these are verified root by root, with SGLang's own sampler.
PROCESSED = {
    "repetition penalty": greedy(STORY, 48, repetition_penalty=1.3),
    "frequency penalty": greedy(STORY, 48, frequency_penalty=0.7),
    "at least": greedy("The end.", 48, min_new_tokens=32),
    "logit bias": greedy(COUNTING, 24, logit_bias={"28": -5.0}),
    "regular expression": greedy("My number is ", 24, regex=r"[0-9]{3}-[0-9]{4}"),
    "JSON schema": greedy("Give me JSON: ", 48, json_schema=SCHEMA),
}
SOURCES = ["lookup", "lm"]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "cases", [GREEDY, PROCESSED, GREEDY | PROCESSED], ids=["greedy", "processed", "mixed"]
)
def test_the_answer_is_the_plain_servers(
    servers: Servers, cases: dict[str, dict[str, Any]], source: str
) -> None:
    plain = _all_outcomes(servers.get("plain").base_url, cases)

    ours = _all_outcomes(servers.get(source).base_url, cases)

    assert ours == plain


@pytest.mark.parametrize("source", SOURCES)
def test_requests_that_come_and_go_do_not_change_each_other(servers: Servers, source: str) -> None:
    requests = [greedy(f"{STORY} number {i}", 8 + 12 * (i % 5)) for i in range(16)]
    alone = [outcome(generate(servers.get("plain").base_url, [body])[0]) for body in requests]

    together = generate(servers.get(source).base_url, requests, delay_s=0.05)

    assert [outcome(reply) for reply in together] == alone


def test_streamed_chunks_join_to_the_whole(servers: Servers) -> None:
    url = servers.get("lookup").base_url
    body = {
        "model": "any",
        "messages": [{"role": "user", "content": "Count from 1 to 30."}],
        "temperature": 0,
        "max_tokens": 96,
    }
    whole = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).json()

    chunks = []
    with httpx.stream(
        "POST", f"{url}/v1/chat/completions", json=body | {"stream": True}, timeout=300
    ) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                delta = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
                chunks.append(delta.get("content") or "")

    assert "".join(chunks) == whole["choices"][0]["message"]["content"]
    assert len(chunks) > 5


def test_a_client_that_leaves_frees_its_request(servers: Servers) -> None:
    url = servers.get("lookup").base_url
    endless = greedy(STORY, 4000, ignore_eos=True) | {"stream": True}
    with (
        httpx.Client(timeout=60) as client,
        client.stream("POST", f"{url}/generate", json=endless) as response,
    ):
        next(response.iter_lines())

    # If it still ran, this server would not come to rest and its memory check would not run.
    plain = outcome(generate(servers.get("plain").base_url, [greedy(COUNTING, 32)])[0])
    ours = outcome(generate(url, [greedy(COUNTING, 32)])[0])
    assert ours == plain
    httpx.post(f"{url}/flush_cache", timeout=60).raise_for_status()  # refused while one runs


def test_siblings_of_one_request_are_answered_alike_when_greedy(servers: Servers) -> None:
    body = {
        "model": "any",
        "prompt": COUNTING,
        "n": 3,
        "temperature": 0,
        "max_tokens": 24,
    }

    url = servers.get("lookup").base_url
    choices = httpx.post(f"{url}/v1/completions", json=body, timeout=120).json()["choices"]

    assert len(choices) == 3
    assert len({choice["text"] for choice in choices}) == 1


def test_sampled_requests_are_served_and_seldom_alike(servers: Servers) -> None:
    body = {"text": STORY, "sampling_params": {"temperature": 1.0, "max_new_tokens": 24}}

    replies = generate(servers.get("lookup").base_url, [body] * 4)

    assert len({reply["text"] for reply in replies}) > 1
    assert all(reply["meta_info"]["completion_tokens"] <= 24 for reply in replies)


def _all_outcomes(base_url: str, cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return every case's outcome by name, with the states and log-probabilities asked for.

    Of a prompt's states only the last is compared: the others depend on what was cached.
    """
    replies = generate(base_url, list(cases.values()))
    more = ("output_top_logprobs", "input_token_logprobs", "output_token_ids_logprobs")
    outcomes = {}
    for name, reply in zip(cases, replies, strict=True):
        prompt_states, *states = reply["meta_info"].get("hidden_states") or [[None]]
        extras = [reply["meta_info"].get(key) for key in more]
        outcomes[name] = (*outcome(reply), extras, prompt_states[-1], states)
    return outcomes
