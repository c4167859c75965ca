"""SGLang's native ``/generate``, for what the OpenAI API does not show: token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx


def generate(
    base_url: str, requests: Sequence[dict[str, Any]], *, delay_s: float = 0.0
) -> list[dict[str, Any]]:
    """Send all requests, each ``delay_s`` after the one before, and return their replies."""

    async def send(client: httpx.AsyncClient, index: int, body: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(index * delay_s)
        response = await client.post("/generate", json=body)
        response.raise_for_status()
        reply: dict[str, Any] = response.json()
        return reply

    async def send_all() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(base_url=base_url, timeout=600) as client:
            return await asyncio.gather(
                *(send(client, index, body) for index, body in enumerate(requests))
            )

    return asyncio.run(send_all())


def greedy(text: str, max_new_tokens: int, **sampling: Any) -> dict[str, Any]:
    """Return a greedy request that also asks for the token ids and their log-probabilities."""
    params = {"temperature": 0, "max_new_tokens": max_new_tokens, **sampling}
    return {"text": text, "sampling_params": params, "return_logprob": True}


def outcome(reply: dict[str, Any]) -> tuple[Any, ...]:
    """Return all of a reply that two agreeing servers have in common."""
    meta = reply["meta_info"]
    tokens = [(token_id, logprob) for logprob, token_id, _ in meta["output_token_logprobs"]]
    return reply["text"], tokens, meta["finish_reason"], meta["completion_tokens"]
