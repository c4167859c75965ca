"""Many chats with one server: who asks when.

Closed loop: so many chats are held at once, and the next begins when one ends. Open loop: chats
arrive in a Poisson process, whatever the server does. In both, a turn follows the server's own
answer to the turn before, with the whole history, after a time to think.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx
import uvloop

from sglang_tetris.bench.client import Ask, Message, Reply, ask
from sglang_tetris.bench.workload import Chat

_SEEDS = 2**31  # what every server accepts


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How chats arrive: ``concurrency`` at once, or ``rate`` per second."""

    concurrency: int | None = None
    rate: float | None = None

    def __str__(self) -> str:
        return f"{self.concurrency} at once" if self.rate is None else f"{self.rate:g} chats/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How the chats are held, the same for every arm."""

    seed: int
    think_time_s: float = 0.0  # mean between an answer and the next turn, exponential
    system_prompt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of one chat and its reply."""

    chat_id: str
    category: str
    index: int  # from 0
    reply: Reply


def hold_chats(
    base_url: str,
    chats: Sequence[Chat],
    load: Load,
    request: Ask,
    manner: Manner,
    *,
    on_turn: Callable[[], None],
) -> list[Turn]:
    """Hold all chats and return every turn that was asked, chat by chat.

    A chat whose turn failed is not continued. ``on_turn`` is called after every turn.
    """

    async def hold() -> list[Turn]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=len(chats))
        async with httpx.AsyncClient(base_url=base_url, limits=limits) as client:
            room = asyncio.Semaphore(load.concurrency or len(chats))
            arrivals = _arrivals(load, len(chats), manner.seed)
            start = time.perf_counter()

            async def hold_one(chat: Chat, arrival_s: float) -> list[Turn]:
                await asyncio.sleep(arrival_s - (time.perf_counter() - start))
                async with room:  # first come, first served: in the order of the chats
                    return await _hold_one(client, chat, request, manner, on_turn)

            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(hold_one(chat, arrival_s))
                    for chat, arrival_s in zip(chats, arrivals, strict=True)
                ]
            return [turn for task in tasks for turn in task.result()]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(hold())


def turn_seed(seed: int, chat_id: str, turn: int) -> int:
    """Return the seed of one turn: the same for every arm, another for every turn."""
    digest = hashlib.sha256(f"{seed}/{chat_id}/{turn}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % _SEEDS


def _arrivals(load: Load, num_chats: int, seed: int) -> list[float]:
    """Return the seconds after the start at which chats arrive, the first at once."""
    if load.rate is None:
        return [0.0] * num_chats
    draw = random.Random(seed)
    arrivals = [0.0]
    while len(arrivals) < num_chats:
        arrivals.append(arrivals[-1] + draw.expovariate(load.rate))
    return arrivals


async def _hold_one(
    client: httpx.AsyncClient,
    chat: Chat,
    request: Ask,
    manner: Manner,
    on_turn: Callable[[], None],
) -> list[Turn]:
    messages: list[Message] = []
    if manner.system_prompt is not None:
        messages.append({"role": "system", "content": manner.system_prompt})
    turns: list[Turn] = []
    for index, said in enumerate(chat.turns):
        seed = turn_seed(manner.seed, chat.chat_id, index)
        if index and manner.think_time_s:
            await asyncio.sleep(random.Random(seed).expovariate(1 / manner.think_time_s))
        messages.append({"role": "user", "content": said})
        reply = await ask(client, request, messages, seed=seed)
        messages.append({"role": "assistant", "content": reply.text})
        turns.append(Turn(chat_id=chat.chat_id, category=chat.category, index=index, reply=reply))
        on_turn()
        if reply.error is not None:
            break
    return turns
