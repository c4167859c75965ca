"""What one streamed turn says: times, tokens, usage, and every way it can fail."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from sglang_tetris.bench.client import Ask, Reply, ask
from tests.unit.bench.fake_server import Chunk, Script, serving

REQUEST = Ask(model="m", max_tokens=5, temperature=0.5, timeout_s=5, is_sglang=True)


def asked(base_url: str, request: Ask = REQUEST) -> Reply:
    """Ask once."""

    async def once() -> Reply:
        async with httpx.AsyncClient(base_url=base_url) as client:
            return await ask(client, request, [{"role": "user", "content": "hello"}], seed=7)

    return asyncio.run(once())


def test_a_reply_has_its_text_tokens_and_usage() -> None:
    with serving() as server:
        reply = asked(server.base_url)

    assert reply.error is None
    assert reply.text == "one two three"
    assert reply.chunk_tokens == [1, 3]
    assert reply.num_output_tokens == 3
    assert (reply.num_prompt_tokens, reply.num_cached_tokens) == (10, 4)
    assert (reply.num_verify_steps, reply.num_correct_drafts) == (2, 1)
    assert reply.finish_reason == "stop"


def test_the_request_is_openai_s_with_usage_per_chunk() -> None:
    with serving() as server:
        asked(server.base_url)

    assert server.requests == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 5,
            "temperature": 0.5,
            "seed": 7,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_spec_tokens_details": True,
        }
    ]


def test_times_are_those_of_the_chunks() -> None:
    chunks = (Chunk("a", 1, 0.05), Chunk("b", 2, 0.1))
    with serving(Script(chunks=chunks)) as server:
        reply = asked(server.base_url)

    assert reply.ttft_s is not None
    assert reply.ttft_s >= 0.05
    assert sum(reply.token_gaps_s()) == pytest.approx(
        reply.chunk_times_s[1] - reply.chunk_times_s[0]
    )
    assert sum(reply.token_gaps_s()) > 0.05
    assert reply.e2e_s >= reply.ttft_s + sum(reply.token_gaps_s())


def test_the_tokens_of_a_chunk_share_its_gap() -> None:
    reply = Reply(
        sent_s=10.0,
        chunk_times_s=[11.0, 12.0, 15.0, 16.0],
        chunk_tokens=[2, 3, 6, 6],
        num_output_tokens=6,
    )

    assert reply.ttft_s == 1.0
    assert reply.token_gaps_s() == [1.0, 1.0, 1.0, 1.0]


def test_a_total_at_the_end_is_spread_over_the_chunks() -> None:
    chunks = (Chunk("a"), Chunk("b", 2), Chunk("c", 3))
    with serving(Script(chunks=chunks, has_usage_per_chunk=False, is_sglang=False)) as server:
        reply = asked(server.base_url)

    assert reply.chunk_tokens == [None, None, None]
    assert reply.num_output_tokens == 6
    assert len(reply.token_gaps_s()) == 4  # all but the two of the first chunk


def test_a_token_without_text_counts() -> None:
    chunks = (Chunk("a"), Chunk("", 1))
    with serving(Script(chunks=chunks)) as server:
        reply = asked(server.base_url)

    assert (reply.chunk_tokens, reply.text) == ([1, 2], "a")


def test_nothing_at_all_has_no_latencies() -> None:
    reply = Reply(sent_s=1.0, end_s=2.0)

    assert reply.ttft_s is None
    assert reply.token_gaps_s() == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (Script(status=503), "HTTP 503"),
        (Script(breaks_after=1), "ended early"),
        (Script(finish_reason=None), "without a finish reason"),
        (Script(finish_reason="abort"), "aborted"),
        (Script(has_usage=False, has_usage_per_chunk=False), "does not report its usage"),
    ],
)
def test_what_goes_wrong_is_in_the_reply(script: Script, said: str) -> None:
    with serving(script) as server:
        reply = asked(server.base_url)

    assert reply.error is not None
    assert said in reply.error
    assert reply.end_s >= reply.sent_s


@pytest.mark.parametrize("event", ["{", "[]", json.dumps({"error": {"message": "out of memory"}})])
def test_an_error_in_the_stream_is_an_error(event: str) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, text=f"data: {event}\n\n"))

    async def once() -> Reply:
        async with httpx.AsyncClient(base_url="http://fake", transport=transport) as client:
            return await ask(client, REQUEST, [], seed=0)

    reply = asyncio.run(once())

    assert reply.error is not None
    assert "in the stream" in reply.error


def test_a_server_that_is_gone_is_an_error() -> None:
    with serving() as server:
        url = server.base_url

    error = asked(url).error

    assert error is not None
    assert "ConnectError" in error


def test_a_server_that_stalls_is_an_error() -> None:
    request = Ask(model="m", max_tokens=5, temperature=0, timeout_s=0.1, is_sglang=False)
    with serving(Script(chunks=(Chunk("a"), Chunk("b", 1, 0.5)))) as server:
        error = asked(server.base_url, request).error

    assert error is not None
    assert "Timeout" in error
