"""Who asks when: closed and open loops, turns after answers, seeds."""

from __future__ import annotations

import math
import random
import signal
import threading
import time

import pytest

from sglang_tetris.bench.client import Ask
from sglang_tetris.bench.load import Load, Manner, Turn, _arrivals, hold_chats, turn_seed
from sglang_tetris.bench.workload import Chat
from tests.unit.bench.fake_server import Chunk, FakeServer, Script, serving

REQUEST = Ask(model="m", max_tokens=5, temperature=0, timeout_s=10, is_sglang=False)
CHATS = [Chat(chat_id=name, category="c", turns=("first", "second")) for name in "abcde"]


def held(
    server: FakeServer, load: Load, chats: list[Chat] = CHATS, manner: Manner | None = None
) -> list[Turn]:
    """Hold chats with a server."""
    manner = manner or Manner(seed=3)
    return hold_chats(server.base_url, chats, load, REQUEST, manner, on_turn=lambda: None)


def test_a_turn_follows_the_server_s_own_answer() -> None:
    manner = Manner(seed=3, system_prompt="be brief")
    with serving() as server:
        turns = held(server, Load(concurrency=1), CHATS[:1], manner)

    assert [turn.index for turn in turns] == [0, 1]
    assert server.requests[1]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "one two three"},
        {"role": "user", "content": "second"},
    ]


@pytest.mark.parametrize("concurrency", [1, 2, 4])
def test_a_closed_loop_holds_as_many_chats_as_it_says(concurrency: int) -> None:
    with serving(Script(at_once=concurrency)) as server:
        turns = held(server, Load(concurrency=concurrency))

    assert server.most_at_once == concurrency
    assert len(turns) == 10


def test_chats_begin_in_their_order() -> None:
    with serving() as server:
        turns = held(server, Load(concurrency=2))

    sent = [turn.reply.sent_s for turn in turns if turn.index == 0]
    assert sent == sorted(sent)
    assert [turn.chat_id for turn in turns] == list("aabbccddee")


def test_an_open_loop_does_not_wait_for_answers() -> None:
    with serving(Script(at_once=len(CHATS))) as server:
        held(server, Load(rate=1000.0))

    assert server.most_at_once == len(CHATS)


def test_arrivals_are_seeded_and_poisson() -> None:
    load = Load(rate=4.0)

    arrivals = _arrivals(load, 4001, seed=1)
    gaps = [b - a for a, b in zip(arrivals, arrivals[1:], strict=False)]

    assert arrivals == _arrivals(load, 4001, seed=1)
    assert arrivals != _arrivals(load, 4001, seed=2)
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 4, rel=0.05)
    assert sum(gap > 0.25 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.03)
    assert _arrivals(Load(concurrency=2), 3, seed=1) == [0.0, 0.0, 0.0]


def test_a_pause_is_made_before_later_turns_only() -> None:
    pause_s = random.Random(turn_seed(3, "a", 1)).expovariate(1 / 0.2)
    with serving() as server:
        turns = held(server, Load(concurrency=1), CHATS[:1], Manner(seed=3, think_time_s=0.2))

    first, second = (turn.reply for turn in turns)
    assert second.sent_s - first.end_s >= 0.9 * pause_s


def test_seeds_differ_by_chat_and_turn_and_not_by_run() -> None:
    with serving() as server:
        held(server, Load(concurrency=1))
        held(server, Load(concurrency=1))

    seeds = [request["seed"] for request in server.requests]
    assert len(set(seeds)) == 10
    assert seeds[:10] == seeds[10:]
    assert turn_seed(3, "a", 0) in seeds
    assert turn_seed(4, "a", 0) not in seeds


def test_a_chat_that_failed_is_not_continued_and_the_others_are() -> None:
    with serving(Script(status=500)) as server:
        turns = held(server, Load(concurrency=2))

    assert [(turn.chat_id, turn.index) for turn in turns] == [(name, 0) for name in "abcde"]
    assert all(turn.reply.error for turn in turns)


def test_ctrl_c_ends_it_at_once() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs begin without it
    main = threading.main_thread().ident
    assert main is not None
    with serving(Script(chunks=(Chunk("x", 1, 5.0),))) as server:
        started = time.perf_counter()
        timer = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            held(server, Load(concurrency=2))

    timer.join()
    assert time.perf_counter() - started < 4
