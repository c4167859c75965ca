"""Several chats at once with one server, over its OpenAI API; each turn follows the server's own
answer to the turn before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from sglang_tetris.cli.demo_conversations import Conversation

_TIMEOUT_S = 300.0  # for one answer: a slow machine under a full batch
_WARM_UP = Conversation("warm-up", ("Count from one to nine.",) * 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One turn's answer and what the server says about it."""

    title: str  # of the conversation
    turn: int  # from 1
    question: str
    text: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_cached_tokens: int  # of the prompt, found in the prefix cache


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRun:
    """All answers of one server, by conversation and turn, and the time they took together."""

    answers: tuple[Answer, ...]
    seconds: float

    @property
    def output_tokens_per_s(self) -> float:
        return sum(len(answer.token_ids) for answer in self.answers) / self.seconds


def hold_chats(
    base_url: str,
    conversations: Sequence[Conversation],
    *,
    num_turns: int,
    max_tokens: int,
    on_answer: Callable[[], None],
) -> ChatRun:
    """Hold all conversations at once, ``num_turns`` each; ``on_answer`` is called after every one."""

    async def hold() -> ChatRun:
        limits = httpx.Limits(max_connections=len(conversations))
        async with httpx.AsyncClient(
            base_url=base_url, timeout=_TIMEOUT_S, limits=limits
        ) as client:
            start = time.perf_counter()
            chats = [
                _chat(client, conversation, num_turns, max_tokens, on_answer)
                for conversation in conversations
            ]
            answers = await asyncio.gather(*chats)
            seconds = time.perf_counter() - start
        return ChatRun(answers=tuple(sum(answers, [])), seconds=seconds)

    return asyncio.run(hold())


def warm_up(base_url: str) -> None:
    """Let a server do once what it does slower the first time."""
    hold_chats(base_url, [_WARM_UP], num_turns=2, max_tokens=16, on_answer=lambda: None)


async def _chat(
    client: httpx.AsyncClient,
    conversation: Conversation,
    num_turns: int,
    max_tokens: int,
    on_answer: Callable[[], None],
) -> list[Answer]:
    messages: list[dict[str, str]] = []
    answers: list[Answer] = []
    for turn, question in enumerate(conversation.turns[:num_turns], start=1):
        messages.append({"role": "user", "content": question})
        reply = await _complete(client, messages, max_tokens)
        text = reply["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": text})
        answers.append(
            Answer(
                title=conversation.title,
                turn=turn,
                question=question,
                text=text,
                token_ids=tuple(reply["choices"][0]["response_token_ids"]),
                num_prompt_tokens=reply["usage"]["prompt_tokens"],
                num_cached_tokens=reply["usage"]["prompt_tokens_details"]["cached_tokens"],
            )
        )
        on_answer()
    return answers


async def _complete(
    client: httpx.AsyncClient, messages: list[dict[str, str]], max_tokens: int
) -> dict[str, Any]:
    request = {
        "model": "default",  # whatever the server serves
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "return_token_ids": True,
    }
    response = await client.post("/v1/chat/completions", json=request)
    response.raise_for_status()
    reply: dict[str, Any] = response.json()
    return reply
