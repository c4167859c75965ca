"""A file of steps to replay later: what was offered to the selection, what it chose, what stood.

No token ids and no text. The file is a msgpack stream of binary objects, each of which holds one
msgpack value: the header first, then one step each. A program without this module can read it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from sglang_tetris.errors import UserError

SCHEMA = 1
_BIN32 = 0xC6  # msgpack's binary object with a length of 32 bits
_FRAME = struct.Struct(">BI")


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What produced the steps that follow."""

    schema: int = SCHEMA
    model: str
    draft_model: str | None
    settings: dict[str, str | int | None]  # as the server was started; a switch may follow
    version: str  # of sglang-tetris


class RequestTrace(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One request in one step. Nodes are those of its candidate tree, padding left out."""

    request: int  # counts the requests of the server; the same in all its steps
    seq_len: int  # committed tokens, the root not counted
    path_logprobs: list[float]  # raw, by node
    scores: list[float]  # calibrated, by node
    parents: list[int]  # by node; -1 means the root
    depths: list[int]  # by node; 1 below the root
    sources: list[int]  # by node (engine/drafting.py, Source)
    selected: list[int]  # nodes that were verified, ascending
    accepted: list[int]  # nodes that were right, from the root down
    accept_length: int  # emitted tokens, the bonus counted


class StepTrace(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One decode step."""

    time_s: float  # since the epoch, at the step's end
    capacity: int
    num_rows: int
    seconds: dict[str, float]  # per phase
    requests: list[RequestTrace]


def pack(item: TraceHeader | StepTrace) -> bytes:
    """Return an item as it stands in the file."""
    content = msgspec.msgpack.encode(item)
    return _FRAME.pack(_BIN32, len(content)) + content


class TraceReader:
    """An open trace: its header, and its steps one by one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        header = _next_item(self._file)
        try:
            self.header = msgspec.msgpack.decode(header or b"", type=TraceHeader)
        except msgspec.MsgspecError:
            self._file.close()
            raise UserError(f"{path}: not a file of --tetris-trace") from None
        if self.header.schema != SCHEMA:
            self._file.close()
            raise UserError(
                f"{path}: a trace of schema {self.header.schema}, this version reads {SCHEMA}"
            )

    def __enter__(self) -> TraceReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[StepTrace]:
        decoder = msgspec.msgpack.Decoder(StepTrace)
        while (item := _next_item(self._file)) is not None:
            try:
                yield decoder.decode(item)
            except msgspec.MsgspecError as error:
                raise UserError(f"{self._path}: damaged: {error}") from None


def _next_item(file: BinaryIO) -> bytes | None:
    """Return the next binary object; None at the end, or where the writer was interrupted."""
    frame = file.read(_FRAME.size)
    if len(frame) < _FRAME.size:
        return None
    kind, length = _FRAME.unpack(frame)
    if kind != _BIN32:
        return b""  # decodes to an error
    content = file.read(length)
    return content if len(content) == length else None
