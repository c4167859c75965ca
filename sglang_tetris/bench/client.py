"""One turn of a chat over the OpenAI API, streamed, with the time of every chunk.

Tokens of a chunk are exact where the server sends its usage with every chunk
(``continuous_usage_stats``, as SGLang does): the differences of ``completion_tokens``. A server
that only reports the total at the end is taken to have spread it evenly over its chunks.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

Message = dict[str, str]
_DATA = "data:"
_DONE = "[DONE]"
_BODY_CHARS = 200  # of a refusal, shown in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What is asked of the server with every turn."""

    model: str
    max_tokens: int
    temperature: float
    timeout_s: float  # for the connection, and between two chunks
    is_sglang: bool  # such a server also says what speculation did for the request

    def body(self, messages: Sequence[Message], seed: int) -> dict[str, Any]:
        """Return the request for one turn."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        if self.is_sglang:
            body["return_spec_tokens_details"] = True
        return body


@dataclass(slots=True, kw_only=True)
class Reply:
    """What came back for one turn; times are those of ``time.perf_counter``."""

    sent_s: float
    end_s: float = 0.0
    text: str = ""
    chunk_times_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int | None] = field(default_factory=list)  # so far, None if not said
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    finish_reason: str | None = None
    num_verify_steps: int = 0  # by speculation; 0 where the server does not say
    num_correct_drafts: int = 0
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first chunk with a token, None if none came."""
        return self.chunk_times_s[0] - self.sent_s if self.chunk_times_s else None

    @property
    def e2e_s(self) -> float:
        """Seconds from sending to the end of the stream."""
        return self.end_s - self.sent_s

    def token_gaps_s(self) -> list[float]:
        """Return one inter-token latency per output token but those of the first chunk.

        The tokens of a chunk arrive together, so each of them is given an equal share of the time
        since the chunk before: the sum over an answer is the time from its first chunk to its last.
        """
        tokens = self._tokens_so_far()
        gaps: list[float] = []
        pairs = zip(self.chunk_times_s, tokens, strict=True)
        before_s, num_before = next(pairs, (0.0, 0))
        for now_s, num_now in pairs:
            if num_now > num_before:
                num_new = num_now - num_before
                gaps += [(now_s - before_s) / num_new] * num_new
                before_s, num_before = now_s, num_now
        return gaps

    def _tokens_so_far(self) -> list[int]:
        num_chunks = len(self.chunk_tokens)
        if None in self.chunk_tokens:
            total = self.num_output_tokens
            return [round(total * (index + 1) / num_chunks) for index in range(num_chunks)]
        return [count for count in self.chunk_tokens if count is not None]


async def ask(
    client: httpx.AsyncClient, request: Ask, messages: Sequence[Message], *, seed: int
) -> Reply:
    """Send one turn and return its reply; what goes wrong is in ``error`` and nothing is raised."""
    reply = Reply(sent_s=time.perf_counter())
    try:
        async with client.stream(
            "POST",
            "/v1/chat/completions",
            json=request.body(messages, seed),
            timeout=request.timeout_s,
        ) as response:
            if response.status_code != httpx.codes.OK:
                content = (await response.aread()).decode(errors="replace")
                raise _ReplyError(f"HTTP {response.status_code}: {content[:_BODY_CHARS]}")
            async for event in _events(response):
                _take(reply, event, time.perf_counter())
        reply.end_s = time.perf_counter()
        _check(reply)
    except (httpx.HTTPError, _ReplyError) as error:
        reply.end_s = time.perf_counter()
        reply.error = f"{type(error).__name__}: {error}".removeprefix("_ReplyError: ")
    return reply


class _ReplyError(Exception):
    """The server answered, but not with an answer."""


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if not line.startswith(_DATA):
            continue
        data = line.removeprefix(_DATA).strip()
        if data == _DONE:
            return
        try:
            event = json.loads(data)
        except ValueError:
            raise _ReplyError(f"not JSON in the stream: {data[:_BODY_CHARS]}") from None
        if not isinstance(event, dict) or "error" in event:
            raise _ReplyError(f"error in the stream: {data[:_BODY_CHARS]}")
        yield event
    raise _ReplyError("the stream ended early")


def _take(reply: Reply, event: dict[str, Any], now_s: float) -> None:
    """Note one event of the stream."""
    text = ""
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        text += delta.get("content") or delta.get("reasoning_content") or ""
        reply.text += delta.get("content") or ""
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
    num_so_far = None
    if usage := event.get("usage"):
        num_so_far = usage.get("completion_tokens", 0)
        details = usage.get("prompt_tokens_details") or {}
        reply.num_prompt_tokens = usage.get("prompt_tokens", 0)
        reply.num_cached_tokens = details.get("cached_tokens") or 0
    has_more = num_so_far is not None and num_so_far > reply.num_output_tokens
    # The total that ends the stream of a server without usage per chunk is no chunk of its own.
    is_only_total = None in reply.chunk_tokens and not text
    if text or (has_more and not is_only_total):
        reply.chunk_times_s.append(now_s)
        reply.chunk_tokens.append(num_so_far)
    if num_so_far is not None:
        reply.num_output_tokens = num_so_far
    if details := (event.get("sglext") or {}).get("spec_tokens_details"):
        reply.num_verify_steps = details.get("spec_verify_ct", 0)
        reply.num_correct_drafts = details.get("spec_num_correct_drafts", 0)


def _check(reply: Reply) -> None:
    if reply.finish_reason is None:
        raise _ReplyError("the stream ended without a finish reason")
    if reply.finish_reason == "abort":
        raise _ReplyError("the server aborted the request")
    if reply.text and not reply.num_output_tokens:
        raise _ReplyError("the server does not report its usage")
