"""The servers shared by a run of the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers import Servers


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Start servers on demand and stop them when the last test is done."""
    shared = Servers(tmp_path_factory.mktemp("servers"))
    yield shared
    shared.close()
