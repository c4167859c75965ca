"""What a name stands for, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sglang_tetris.bench.arms import ALLOWED, Arm, check_arms, parse_arms, read_arms, start_args
from sglang_tetris.errors import ConfigError

LOOKUP = ("--tetris-sources", "lookup")


def one(word: str, draft_model: str | None = None) -> Arm:
    """Return the only arm of a list."""
    (arm,) = parse_arms(word, draft_model=draft_model)
    return arm


def test_arms_that_differ_in_policy_share_a_server() -> None:
    fixed, paper, automatic = parse_arms(
        "lookup:fixed:4, lookup:paper:2+2,fixed:3", draft_model=None
    )

    assert fixed.server == paper.server == automatic.server
    assert fixed.server.args == LOOKUP
    assert fixed.complete_settings == {"policy": "fixed", "capacity": 4, "draft_tokens": 4}
    assert paper.complete_settings == {
        "policy": "per_request",
        "tokens_per_request": 2,
        "draft_tokens": 4,
    }


def test_a_source_left_out_is_the_model_when_there_is_one() -> None:
    assert one("fixed:4", "draft").server == one("lm:fixed:4", "draft").server
    assert one("lm:fixed:4", "draft").server.args == (
        "--tetris-sources",
        "lm",
        "--speculative-draft-model-path",
        "draft",
    )
    assert one("lookup:fixed:4", "draft").server.args == LOOKUP


def test_the_shared_server_starts_with_the_first_arm_and_the_most_draft_tokens() -> None:
    arms = parse_arms("lookup:paper:1+0,lookup:paper:3+3,lookup:fixed:4", draft_model=None)

    assert start_args(arms[0].server, arms) == [
        "--tetris-policy", "per_request", "--tetris-tokens-per-request", "1",
        "--tetris-draft-tokens", "6", *LOOKUP,
    ]  # fmt: skip
    assert start_args(one("none").server, [one("none")]) == ["--no-speculation"]


def test_an_algorithm_of_sglang_keeps_its_commas() -> None:
    first, second, third = parse_arms(
        "sglang:eagle:num_steps=3,eagle_topk=1,none,sglang:NGRAM", draft_model="draft"
    )

    assert first.name == "sglang:eagle:num_steps=3,eagle_topk=1"
    assert first.server.args == (
        "--speculative-algorithm", "EAGLE", "--speculative-num-steps", "3",
        "--speculative-eagle-topk", "1", "--speculative-draft-model-path", "draft",
    )  # fmt: skip
    assert second.name == "none"
    assert third.server.args == ("--speculative-algorithm", "NGRAM")


@pytest.mark.parametrize("written", ["http://host:1", "http://host:1/", "http://host:1/v1"])
def test_an_address_is_taken_with_and_without_its_path(written: str) -> None:
    assert one(f"url:{written}").server.url == "http://host:1"


def test_an_arm_is_fixed_when_its_capacity_cannot_move_between_requests() -> None:
    words = ["none", "fixed:4", "paper:2+0", "paper:2+2", "url:http://a", "sglang:NGRAM"]

    assert [word for word in words if one(word).is_fixed] == ["fixed:4", "paper:2+0"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("best", f"unknown arm 'best'; allowed: {ALLOWED}"),
        ("fixed:-1", "unknown arm 'fixed:-1'"),
        ("fixed:", "unknown arm"),
        ("paper:2", "unknown arm"),
        ("eagle:fixed:2", "unknown arm"),
        ("paper:9+9", "draft_tokens.*less than or equal to 7|less than or equal to 7"),
        ("lm:fixed:2", "needs a draft model; add --draft-model-path"),
        ("sglang:TETRIS", "name an algorithm of SGLang's"),
        ("sglang:EAGLE:steps", "'steps' must be KEY=VALUE"),
        ("url:host:1", "must start with http://"),
    ],
)
def test_what_is_no_arm_is_refused_by_name(words: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("[", r"\[").replace("+", r"\+")) as error:
        parse_arms(words, draft_model=None)
    assert "\n" not in str(error.value)


def test_no_arm_and_the_same_arm_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match="there is none"):
        check_arms(parse_arms(" , ", draft_model=None))
    with pytest.raises(ConfigError, match="'none' is named twice"):
        check_arms(parse_arms("none,none", draft_model=None))


def test_a_file_holds_the_same_objects(tmp_path: Path) -> None:
    path = tmp_path / "arms.json"
    arms = parse_arms("none,lookup:fixed:4,url:http://host:1", draft_model=None)
    path.write_text(json.dumps([arm.model_dump() for arm in arms]))

    assert read_arms(path) == arms


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "arms.json: Invalid JSON"),
        ("{}", "arms.json: Input should be a valid"),
        ('[{"name": "a"}]', "arms.json: 0.server: Field required"),
        ('[{"name": "a", "server": {"kind": "best"}}]', "0.server.kind: Input should be"),
        ('[{"name": "a", "server": {"kind": "url"}}]', "0.server: kind 'url' and a url"),
        ('[{"name": "a", "server": {"kind": "plain"}, "settings": {"policy": "fixed"}}]', "settin"),
        (
            '[{"name": "a", "server": {"kind": "tetris"}, "settings": {"sources": "lm"}}]',
            "0: settings: 'sources' cannot be switched; known: policy",
        ),
    ],
)
def test_a_bad_file_is_refused_with_the_place(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "arms.json").write_text(content)

    with pytest.raises(ConfigError, match=said) as error:
        read_arms(tmp_path / "arms.json")
    assert "\n" not in str(error.value)
