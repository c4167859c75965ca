"""Multi-turn chats held over the OpenAI API, and what came back, exactly."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

_TOPICS = [
    "the water cycle", "binary search", "the French Revolution", "sourdough bread", "tides",
    "prime numbers", "jazz music", "photosynthesis", "chess openings", "the moon landing",
    "volcanoes", "compound interest", "bicycles", "honey bees", "Roman roads", "rainbows",
    "hash tables", "marathon training", "the printing press", "glaciers",
]  # fmt: skip
_OPENINGS = [
    ("Explain {} to a ten year old.", "Now say it in one sentence.", "Translate that to French."),
    ("List five facts about {}.", "Which of them is the most surprising, and why?"),
    ("Write a short poem about {}.",),
    ("What is the history of {}? Answer briefly.", "Make a table of the main dates."),
    ("Write a Python function whose name has to do with {}.", "Add a docstring.", "Add a test."),
    ("Repeat the words '{}' ten times, separated by commas.",),
]


def conversations(count: int) -> list[list[str]]:
    """Return the user turns of ``count`` different chats of one to three turns."""
    pairs = itertools.product(range(len(_TOPICS)), range(len(_OPENINGS)))
    mixed = sorted(pairs, key=lambda pair: ((pair[0] + pair[1]) % len(_TOPICS), pair))
    assert count <= len(mixed)
    return [[turn.format(_TOPICS[t]) for turn in _OPENINGS[o]] for t, o in mixed[:count]]


@dataclass(frozen=True, slots=True)
class Answer:
    """One turn's answer; two servers agree when these are equal."""

    text: str
    tokens: tuple[tuple[str, float], ...]  # with log-probabilities
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int | None  # None in a first turn: it depends on who came before


Ask = Callable[[str], list[list[Answer]]]  # the answers of a kind of server to the shared chats


def hold(
    base_url: str, chats: Sequence[Sequence[str]], *, at_once: int, max_tokens: int
) -> list[list[Answer]]:
    """Hold the chats greedily, ``at_once`` at a time, each turn after the server's own answer."""
    limits = httpx.Limits(max_connections=at_once)
    with (
        httpx.Client(base_url=base_url, timeout=600, limits=limits) as client,
        ThreadPoolExecutor(at_once) as pool,
    ):
        return list(pool.map(lambda turns: _hold_one(client, turns, max_tokens), chats))


def _hold_one(client: httpx.Client, turns: Sequence[str], max_tokens: int) -> list[Answer]:
    messages: list[dict[str, str]] = []
    answers: list[Answer] = []
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        body = {
            "model": "any",
            "messages": messages,
            "temperature": 0,
            "max_tokens": max_tokens,
            "logprobs": True,
        }
        response = client.post("/v1/chat/completions", json=body)
        response.raise_for_status()
        reply = response.json()
        choice, usage = reply["choices"][0], reply["usage"]
        cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
        answer = Answer(
            text=choice["message"]["content"],
            tokens=tuple((t["token"], t["logprob"]) for t in choice["logprobs"]["content"]),
            finish_reason=choice["finish_reason"],
            prompt_tokens=usage["prompt_tokens"],
            cached_tokens=cached if answers else None,
        )
        messages.append({"role": "assistant", "content": answer.text})
        answers.append(answer)
    return answers


def differences(ours: list[list[Answer]], theirs: list[list[Answer]]) -> list[str]:
    """Return one line for every answer that is not the same in all respects."""
    assert len(ours) == len(theirs)
    found = []
    for chat, (left, right) in enumerate(zip(ours, theirs, strict=True)):
        for turn, (a, b) in enumerate(zip(left, right, strict=True)):
            if a != b:
                pairs = enumerate(zip(a.tokens, b.tokens, strict=False))
                first = next(((i, *pair) for i, pair in pairs if pair[0] != pair[1]), None)
                rest = [(x.finish_reason, x.prompt_tokens, x.cached_tokens) for x in (a, b)]
                found.append(f"chat {chat} turn {turn}: first token {first}; {rest}")
    return found
