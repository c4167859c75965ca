"""The chats of a run: what users say, turn by turn. What the model answers is not in them.

A file is JSON Lines of ``{"id", "category", "turns": [...]}`` or ShareGPT's JSON list; two names
stand for data that is no file.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_tetris.errors import UserError

EMBEDDED = "default"  # the chats in this package
ARENA = "lmsys/chatbot_arena_conversations"  # fetched with `datasets`
_NO_CATEGORY = "chat"
_SHARE_GPT_USERS = ("human", "user")


class WorkloadError(UserError):
    """A data set is missing, empty or malformed; the message says in which line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """One user's side of a conversation."""

    chat_id: str
    category: str
    turns: tuple[str, ...]


def load_chats(dataset: str, *, limit: int | None, max_turns: int | None) -> list[Chat]:
    """Return the first ``limit`` chats of a data set, cut to ``max_turns`` each."""
    if dataset == EMBEDDED:
        chats: Iterable[Chat] = embedded_chats()
    elif dataset == ARENA:
        chats = _arena_chats()
    else:
        chats = read_chats(Path(dataset))
    cut = [
        Chat(chat_id=chat.chat_id, category=chat.category, turns=chat.turns[:max_turns])
        for chat in itertools.islice(chats, limit)
    ]
    if not cut:
        raise WorkloadError(f"--dataset {dataset}: there is no chat in it")
    return cut


def embedded_chats() -> list[Chat]:
    """Return the package's own chats."""
    file = importlib.resources.files("sglang_tetris.bench") / "chats.jsonl"
    return list(_chats_of_lines(EMBEDDED, file.read_text(encoding="utf-8").splitlines()))


def read_chats(path: Path) -> list[Chat]:
    """Return all chats of a file; raise ``WorkloadError`` where a line is none."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows writes a mark before it
    except OSError as error:
        raise WorkloadError(f"--dataset {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise WorkloadError(f"--dataset {path}: not UTF-8: {error}") from None
    if text.lstrip().startswith("["):
        return list(_chats_of_share_gpt(path, text))
    return list(_chats_of_lines(str(path), text.split("\n")))


def fingerprint(chats: Sequence[Chat]) -> str:
    """Return what tells two workloads apart: a digest of all that users say."""
    content = [[chat.chat_id, chat.category, *chat.turns] for chat in chats]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _chats_of_lines(name: str, lines: Sequence[str]) -> Iterator[Chat]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise WorkloadError(f"--dataset {name}, line {number}: not JSON: {error}") from None
        try:
            yield _chat(row, default_id=f"line-{number}")
        except ValueError as error:
            raise WorkloadError(f"--dataset {name}, line {number}: {error}") from None


def _chat(row: Any, *, default_id: str) -> Chat:
    if not isinstance(row, dict):
        raise ValueError('must be an object {"id", "category", "turns"}')
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns:
        raise ValueError("turns: must be a list of at least one text")
    for turn in turns:
        if not isinstance(turn, str) or not turn.strip():
            raise ValueError(f"turns: {json.dumps(turn)} is no text")
    category = row.get("category", _NO_CATEGORY)
    if not isinstance(category, str):
        raise ValueError(f"category: {json.dumps(category)} is no text")
    given_id = row.get("id")
    chat_id = default_id if given_id is None else str(given_id)
    return Chat(chat_id=chat_id, category=category, turns=tuple(turns))


def _chats_of_share_gpt(path: Path, text: str) -> Iterator[Chat]:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise WorkloadError(
            f"--dataset {path}, line {error.lineno}: not JSON: {error.msg}"
        ) from None
    for index, row in enumerate(rows):
        where = f"--dataset {path}, conversation {index + 1}"
        said = row.get("conversations") if isinstance(row, dict) else None
        if not isinstance(said, list):
            raise WorkloadError(f'{where}: has no list "conversations"')
        for part in said:
            if not (isinstance(part, dict) and {"from", "value"} <= part.keys()):
                raise WorkloadError(f'{where}: a part has no "from" and "value"')
        theirs = [part["value"] for part in said if part["from"] in _SHARE_GPT_USERS]
        # A dump may have blank turns; anything else that is no text is refused.
        if turns := [turn for turn in theirs if not isinstance(turn, str) or turn.strip()]:
            try:
                yield _chat({**row, "turns": turns}, default_id=f"sharegpt-{index + 1}")
            except ValueError as error:
                raise WorkloadError(f"{where}: {error}") from None


def _arena_chats() -> Iterator[Chat]:
    for row in _arena_rows():
        said = row["conversation_a"]
        turns = [part["content"] for part in said if part["role"] == "user"]
        category = "chat-" + str(row.get("language", "unknown")).lower()
        yield Chat(chat_id=row["question_id"], category=category, turns=tuple(turns))


def _arena_rows() -> Iterator[Mapping[str, Any]]:
    try:
        from datasets import load_dataset  # late: optional, and it takes seconds
    except ImportError:
        raise WorkloadError(
            f"--dataset {ARENA}: needs the package datasets; pip install datasets"
        ) from None
    try:
        yield from load_dataset(ARENA, split="train", streaming=True)
    except Exception as error:  # noqa: BLE001  whatever the hub's client raises is the network's
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise WorkloadError(f"--dataset {ARENA}: cannot be fetched: {reason}") from None
