"""What a run of the tests shares: servers, and their answers to the same chats."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from tests.support.chats import Answer, Ask, conversations, hold
from tests.support.servers import Servers

NUM_CHATS = 60
AT_ONCE = 8
MAX_TOKENS = 128


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Start servers on demand and stop them when the last test is done."""
    shared = Servers(tmp_path_factory.mktemp("servers"))
    yield shared
    shared.close()


@pytest.fixture(scope="session")
def answers(servers: Servers) -> Ask:
    """Return what a kind of server answers to the shared chats; each is asked once."""

    @functools.cache
    def of(kind: str) -> list[list[Answer]]:
        url = servers.get(kind).base_url
        return hold(url, conversations(NUM_CHATS), at_once=AT_ONCE, max_tokens=MAX_TOKENS)

    return of
