"""Sampled text under TETRIS is that of a separate server without it, for every sampling option;
and on both it is the same whoever else is in the batch."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from tests.support.generate import generate
from tests.support.sampled import REGEX, SCHEMA, combinations, outcomes, request, singles
from tests.support.servers import Servers

pytestmark = [pytest.mark.sglang, pytest.mark.e2e, pytest.mark.timeout(600)]

SOURCES = ["lookup", "lm"]
NUM_COMBINATIONS = 20
NUM_MORE = 100  # in the slow form


@pytest.fixture(scope="module")
def plain_outcomes(servers: Servers) -> dict[str, tuple[Any, ...]]:
    """Return what the plain server answers to each option and combination, 16 at once."""
    requests = singles() | combinations(NUM_COMBINATIONS)
    replies = outcomes(servers.get("plain").base_url, list(requests.values()), at_once=16)
    return dict(zip(requests, replies, strict=True))


@pytest.mark.parametrize("at_once", [8, 16])
@pytest.mark.parametrize("source", SOURCES)
def test_every_option_gives_the_plain_servers_answer(
    servers: Servers, plain_outcomes: dict[str, tuple[Any, ...]], source: str, at_once: int
) -> None:
    requests = singles() | combinations(NUM_COMBINATIONS)

    replies = outcomes(servers.get(source).base_url, list(requests.values()), at_once=at_once)

    assert dict(zip(requests, replies, strict=True)) == plain_outcomes
    assert sum(step.num_correct_drafts for step in servers.get(source).steps()) > 100


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
def test_more_combinations_give_the_plain_servers_answer(servers: Servers, source: str) -> None:
    requests = list(combinations(NUM_MORE, seed=1).values())
    plain = outcomes(servers.get("plain").base_url, requests, at_once=16)

    assert outcomes(servers.get(source).base_url, requests, at_once=16) == plain


@pytest.mark.parametrize("kind", ["plain", *SOURCES])
def test_an_answer_does_not_depend_on_who_else_is_served(servers: Servers, kind: str) -> None:
    mine = [
        request(1, "temperature 1.2"),
        request(2, "top-p", "repetition penalty"),
        request(3, "temperature 0"),
        request(4, "regular expression"),
    ]
    strangers = list(combinations(16, seed=7).values())
    url = servers.get(kind).base_url

    alone = outcomes(url, mine, at_once=1)
    among_others = outcomes(url, [*mine, *strangers], at_once=len(mine) + len(strangers))

    assert among_others[: len(mine)] == alone


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("max_new_tokens", [1, 2, 3])
def test_short_answers_are_the_plain_servers(
    servers: Servers, source: str, max_new_tokens: int
) -> None:
    names = ["temperature 1.2", "temperature 0", "JSON schema", "frequency penalty"]
    requests = [request(i, name, max_new_tokens=max_new_tokens) for i, name in enumerate(names * 2)]
    plain = outcomes(servers.get("plain").base_url, requests, at_once=8)

    assert outcomes(servers.get(source).base_url, requests, at_once=8) == plain


# Seeds


@pytest.mark.parametrize("kind", ["plain", "lookup"])
def test_samples_of_one_request_differ_and_come_again(servers: Servers, kind: str) -> None:
    first = _completions(servers.get(kind).base_url, n=3, seed=11)
    again = _completions(servers.get(kind).base_url, n=3, seed=11)
    single = _completions(servers.get(kind).base_url, n=1, seed=11)

    assert len(set(first)) == 3
    assert again == first
    assert single == first[:1]


def test_samples_of_one_request_are_the_plain_servers(servers: Servers) -> None:
    plain = _completions(servers.get("plain").base_url, n=4, seed=12)

    assert _completions(servers.get("lookup").base_url, n=4, seed=12) == plain


@pytest.mark.parametrize("kind", ["plain", "lookup"])
def test_requests_without_a_seed_differ(servers: Servers, kind: str) -> None:
    texts = [text for _ in range(3) for text in _completions(servers.get(kind).base_url, n=2)]

    assert len(set(texts)) == 6


@pytest.mark.parametrize("kind", ["plain", "lookup"])
def test_streamed_chunks_join_to_the_whole(servers: Servers, kind: str) -> None:
    body = _chat("Write a poem about tides.") | {"temperature": 1.0, "seed": 5, "max_tokens": 64}
    url = f"{servers.get(kind).base_url}/v1/chat/completions"
    whole = httpx.post(url, json=body, timeout=300).json()["choices"][0]["message"]["content"]

    chunks = []
    with httpx.stream("POST", url, json=body | {"stream": True}, timeout=300) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunks.append(json.loads(line.removeprefix("data: "))["choices"][0]["delta"])

    assert "".join(chunk.get("content") or "" for chunk in chunks) == whole
    assert len(chunks) > 5


# Grammars


@pytest.mark.parametrize(
    "num_requests", [24, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_constrained_answers_parse_and_are_the_plain_servers(
    servers: Servers, num_requests: int
) -> None:
    kinds = ["JSON schema", "regular expression", "EBNF"]
    requests = [
        request(1000 + i, kinds[i % 3], "temperature 1.2", max_new_tokens=128)
        for i in range(num_requests)
    ]
    plain = outcomes(servers.get("plain").base_url, requests, at_once=16)

    by_source = {
        source: outcomes(servers.get(source).base_url, requests, at_once=16) for source in SOURCES
    }

    assert by_source == dict.fromkeys(SOURCES, plain)
    assert [text for i, (text, *_) in enumerate(plain) if not _parses(kinds[i % 3], text)] == []


def test_a_tool_call_is_the_plain_servers_and_parses(servers: Servers) -> None:
    function = {"name": "save_person", "strict": True, "parameters": SCHEMA}
    body = _chat("Save a person named Ada, 36 years old.") | {
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "required",
        "temperature": 1.0,
        "max_tokens": 120,
    }

    def calls(kind: str) -> list[Any]:
        url = f"{servers.get(kind).base_url}/v1/chat/completions"
        replies = [httpx.post(url, json=body | {"seed": i}, timeout=300).json() for i in range(4)]
        called = [reply["choices"][0]["message"]["tool_calls"] for reply in replies]
        return [call["function"] for of_reply in called for call in of_reply]

    plain = calls("plain")

    assert calls("lookup") == plain
    assert {call["name"] for call in plain} == {"save_person"}
    assert all(
        json.loads(call["arguments"]).keys() == SCHEMA["properties"].keys() for call in plain
    )


def test_a_grammars_end_is_the_end_of_an_answer_that_ignores_stop_tokens(servers: Servers) -> None:
    """SGLang's plain path draws one more token then, which no grammar constrains; its
    speculative path does not (patches/ has the change that would make them one)."""
    body = request(3, "regular expression", "ignored end")

    ours = generate(servers.get("lookup").base_url, [body])[0]["text"]
    plain = generate(servers.get("plain").base_url, [body])[0]["text"]

    assert re.fullmatch(REGEX, ours)
    assert plain.startswith(ours)


def _parses(kind: str, text: str) -> bool:
    if kind == "JSON schema":
        person = json.loads(text)
        return (
            person.keys() == SCHEMA["properties"].keys()
            and len(person["name"]) <= 12
            and 0 <= person["age"] <= 99
            and set(person["tags"]) <= {"red", "green", "blue"}
        )
    item = r"[a-z]{2,8} = [0-9]{1,3}"
    pattern = REGEX if kind == "regular expression" else rf"{item}(; {item}){{1,3}}\."
    return re.fullmatch(pattern, text) is not None


def _chat(message: str) -> dict[str, Any]:
    return {"model": "any", "messages": [{"role": "user", "content": message}]}


def _completions(base_url: str, **fields: Any) -> list[str]:
    body = {"model": "any", "prompt": "Once upon a time", "temperature": 1.2, "max_tokens": 24}
    reply = httpx.post(f"{base_url}/v1/completions", json=body | fields, timeout=120).json()
    return [choice["text"] for choice in reply["choices"]]
