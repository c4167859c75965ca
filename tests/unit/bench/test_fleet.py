"""Servers are shared, switched, kept few, and gone at the end. Starting them is faked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sglang_tetris.bench.arms import Arm, parse_arms
from sglang_tetris.bench.fleet import Fleet
from sglang_tetris.config import CONTROL_TOKEN
from sglang_tetris.errors import ConfigError, TetrisError
from tests.unit.bench.fake_server import FakeLauncher, Launched, Script, serving

Switched = list[tuple[str, str, dict[str, Any]]]


def fleet_of(
    launcher: FakeLauncher,
    words: str,
    tmp_path: Path,
    *,
    at_most: int = 3,
    switched: Switched | None = None,
) -> tuple[Fleet[Launched], list[Arm]]:
    """Return a fleet for some arms."""
    arms = parse_arms(words, draft_model=None)
    log: Switched = [] if switched is None else switched
    fleet = Fleet(
        launcher,
        arms,
        common_args=["--common"],
        directory=tmp_path,
        at_most=at_most,
        switch=lambda endpoint, token, settings: log.append((endpoint, token, settings)),
    )
    return fleet, arms


def test_arms_of_one_server_switch_it(tmp_path: Path) -> None:
    launcher, switched = FakeLauncher(), Switched()
    fleet, (first, second) = fleet_of(launcher, "fixed:4,paper:2+2", tmp_path, switched=switched)

    with fleet:
        endpoints = [fleet.get(arm) for arm in (first, second, second, first)]

    assert len({id(endpoint) for endpoint in endpoints}) == 1
    (started,) = launcher.started
    token = started.environ[CONTROL_TOKEN]
    address = started.args[started.args.index("--tetris-control") + 1]
    assert switched == [(address, token, arm.complete_settings) for arm in (first, second, first)]
    assert started.args[-5] == "--common"
    assert launcher.alive == []


def test_a_server_of_one_arm_is_not_switched(tmp_path: Path) -> None:
    launcher, switched = FakeLauncher(), Switched()
    fleet, arms = fleet_of(launcher, "fixed:4,none", tmp_path, switched=switched)

    with fleet:
        endpoints = [fleet.get(arm) for arm in arms]

    assert switched == []
    assert not any("--tetris-control" in server.args for server in launcher.started)
    assert [endpoint.step_log is None for endpoint in endpoints] == [False, True]
    assert endpoints[0].model == "models/fake"
    assert endpoints[0].is_sglang


def test_no_more_servers_live_than_are_allowed(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    fleet, arms = fleet_of(launcher, "none,sglang:NGRAM,fixed:4", tmp_path, at_most=2)

    with fleet:
        fleet.start([arms[0].server, arms[1].server])
        for arm in (*arms, *arms):
            fleet.get(arm)

    assert launcher.most_alive == 2
    assert launcher.alive == []


def test_a_server_that_does_not_come_up_is_an_error_each_time(tmp_path: Path) -> None:
    launcher = FakeLauncher(unhealthy=("NGRAM",))
    fleet, (arm,) = fleet_of(launcher, "sglang:NGRAM", tmp_path)

    with fleet:
        for _ in range(2):
            with pytest.raises(TetrisError, match="did not come up.*\nlast words"):
                fleet.get(arm)
        assert launcher.alive == []


def test_a_death_is_told_once_and_the_next_arm_gets_a_new_server(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    fleet, (arm,) = fleet_of(launcher, "none", tmp_path)

    with fleet:
        fleet.get(arm)
        fleet.check_alive(arm)
        launcher.started[0].process.exit_code = -9
        with pytest.raises(TetrisError, match="died with exit code -9.*\nlast words"):
            fleet.check_alive(arm)
        fleet.check_alive(arm)
        fleet.get(arm)

    assert len(launcher.started) == 2


def test_the_cache_of_an_sglang_server_is_emptied(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    fleet, (arm,) = fleet_of(launcher, "none", tmp_path)

    with fleet:
        assert fleet.get(arm).empty_cache()
        assert launcher.started[0].fake.num_flushes == 1


def test_a_running_server_is_used_as_it_is(tmp_path: Path) -> None:
    with serving(Script(is_sglang=False)) as server:
        fleet, (arm,) = fleet_of(FakeLauncher(), f"url:{server.base_url}", tmp_path)
        with fleet:
            fleet.check_remotes()
            endpoint = fleet.get(arm)

            assert endpoint.base_url == server.base_url
            assert not endpoint.is_sglang
            assert not endpoint.empty_cache()
            fleet.check_alive(arm)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://[bad", "http://127.0.0.1:99999"])
def test_an_address_that_does_not_answer_is_refused(url: str, tmp_path: Path) -> None:
    fleet, _ = fleet_of(FakeLauncher(), f"url:{url}", tmp_path)

    with pytest.raises(ConfigError, match="--arms url:.* cannot be reached") as error:
        fleet.check_remotes()
    assert "\n" not in str(error.value)
