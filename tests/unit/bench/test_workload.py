"""Chats come from files of two forms; what is malformed is named with its line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sglang_tetris.bench.workload import (
    ARENA,
    EMBEDDED,
    Chat,
    WorkloadError,
    embedded_chats,
    fingerprint,
    load_chats,
    read_chats,
)

GOOD = '{"id": "a", "category": "maths", "turns": ["one", "two", "three"]}'


def chats_of(content: str, tmp_path: Path) -> list[Chat]:
    """Return the chats of a file."""
    path = tmp_path / "data"
    path.write_text(content, encoding="utf-8")
    return read_chats(path)


def test_our_own_chats_are_many_and_different() -> None:
    chats = embedded_chats()

    assert len(chats) == 36
    assert len({chat.chat_id for chat in chats}) == 36
    assert len({turn for chat in chats for turn in chat.turns}) == sum(len(c.turns) for c in chats)
    assert min(len(chat.turns) for chat in chats) >= 2
    assert len({chat.category for chat in chats}) >= 8


def test_json_lines_are_read_with_empty_lines_between(tmp_path: Path) -> None:
    chats = chats_of(f'{GOOD}\n\n{{"turns": ["\u2028x"]}}\n', tmp_path)

    assert chats == [
        Chat(chat_id="a", category="maths", turns=("one", "two", "three")),
        Chat(chat_id="line-3", category="chat", turns=("\u2028x",)),
    ]


def test_a_byte_order_mark_and_an_empty_id_are_no_content(tmp_path: Path) -> None:
    (chat,) = chats_of('\ufeff{"id": null, "turns": ["one"]}', tmp_path)

    assert chat == Chat(chat_id="line-1", category="chat", turns=("one",))


def test_share_gpt_gives_what_people_said(tmp_path: Path) -> None:
    rows = [
        {
            "id": "x",
            "conversations": [
                {"from": "human", "value": "hello"},
                {"from": "gpt", "value": "hi"},
                {"from": "human", "value": " "},
                {"from": "user", "value": "bye"},
            ],
        },
        {"id": "only the model", "conversations": [{"from": "gpt", "value": "hi"}]},
        {"id": "nothing", "conversations": [{"from": "human", "value": ""}]},
    ]

    assert chats_of(json.dumps(rows), tmp_path) == [
        Chat(chat_id="x", category="chat", turns=("hello", "bye"))
    ]


def arena_rows() -> Iterator[dict[str, Any]]:
    """Yield one chat as the hub has it, then fail as a network does."""
    said = [("user", "hello"), ("assistant", "hi"), ("user", "bye")]
    conversation = [{"role": role, "content": content} for role, content in said]
    yield {"question_id": "q", "language": "English", "conversation_a": conversation}
    raise ConnectionError("reset by peer\nand more")


def test_the_arena_gives_what_people_said_until_the_network_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    datasets = ModuleType("datasets")
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: arena_rows(), raising=False)
    monkeypatch.setitem(sys.modules, "datasets", datasets)

    assert load_chats(ARENA, limit=1, max_turns=None) == [
        Chat(chat_id="q", category="chat-english", turns=("hello", "bye"))
    ]
    with pytest.raises(WorkloadError, match="cannot be fetched: reset by peer$"):
        load_chats(ARENA, limit=None, max_turns=None)


def test_limits_cut_chats_and_turns(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(f"{GOOD}\n{GOOD}\n{GOOD}\n")

    chats = load_chats(str(path), limit=2, max_turns=1)

    assert [chat.turns for chat in chats] == [("one",), ("one",)]
    assert load_chats(EMBEDDED, limit=None, max_turns=None) == embedded_chats()


def test_the_fingerprint_tells_workloads_apart() -> None:
    chats = embedded_chats()

    assert fingerprint(chats) == fingerprint(list(chats))
    assert fingerprint(chats) != fingerprint(chats[:-1])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (f"{GOOD}\n{{", "data, line 2: not JSON"),
        (f'{GOOD}\n"text"', "line 2: must be an object"),
        (f'{GOOD}\n\n{{"id": "b"}}', "line 3: turns: must be a list"),
        ('{"turns": []}', "line 1: turns: must be a list of at least one"),
        ('{"turns": ["a", 3]}', "line 1: turns: 3 is no text"),
        ('{"turns": ["a", "  "]}', 'line 1: turns: "  " is no text'),
        ('{"turns": ["a"], "category": 3}', "line 1: category: 3 is no text"),
        ('[\n{"id": 1,\n]', "line 3: not JSON"),
        ("[1]", 'conversation 1: has no list "conversations"'),
        ('[{"conversations": [{"from": "human"}]}]', 'conversation 1: a part has no "from"'),
        (
            '[{"conversations": [{"from": "user", "value": "a"}, {"from": "user", "value": 1}]}]',
            "1",
        ),
    ],
)
def test_a_malformed_file_is_refused_with_the_place(
    content: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(WorkloadError, match=said) as error:
        chats_of(content, tmp_path)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)


def test_a_file_that_is_empty_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")

    for name, said in [("empty", "no chat"), ("binary", "not UTF-8"), ("none", "No such file")]:
        with pytest.raises(WorkloadError, match=said):
            load_chats(str(tmp_path / name), limit=None, max_turns=None)
