"""A trace is read as it was written, and what is not a trace is refused."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from sglang_tetris.errors import UserError
from sglang_tetris.trace import SCHEMA, RequestTrace, StepTrace, TraceHeader, TraceReader, pack

HEADER = TraceHeader(
    model="target", draft_model=None, settings={"policy": "fixed", "capacity": 4}, version="0.1.0"
)
STEP = StepTrace(
    time_s=12.5,
    capacity=4,
    num_rows=3,
    seconds={"verify": 0.25},
    requests=[
        RequestTrace(
            request=7,
            seq_len=40,
            path_logprobs=[-0.5, -math.inf],
            scores=[0.6, 0.0],
            parents=[-1, 0],
            depths=[1, 2],
            sources=[0, 0],
            selected=[0],
            accepted=[0],
            accept_length=2,
        ),
        RequestTrace(
            request=8,
            seq_len=4,
            path_logprobs=[],
            scores=[],
            parents=[],
            depths=[],
            sources=[],
            selected=[],
            accepted=[],
            accept_length=1,
        ),
    ],
)


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(pack(HEADER) + pack(STEP) + pack(STEP))

    with TraceReader(path) as trace:
        assert trace.header == HEADER
        assert list(trace) == [STEP, STEP]


@pytest.mark.parametrize("cut", [1, 4, 30])
def test_a_step_that_is_being_written_is_left_out(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "trace"
    path.write_bytes(pack(HEADER) + pack(STEP) + pack(STEP)[:-cut])

    with TraceReader(path) as trace:
        assert list(trace) == [STEP]


@pytest.mark.parametrize("content", [b"", b"{}\n", b"\xc6\0\0\0\x03abc", pack(STEP)])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)

    with pytest.raises(UserError, match="other: not a file of --tetris-trace"):
        TraceReader(path)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(pack(msgspec.structs.replace(HEADER, schema=SCHEMA + 1)))

    with pytest.raises(UserError, match=f"of schema {SCHEMA + 1}, this version reads {SCHEMA}"):
        TraceReader(path)


def test_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(pack(HEADER) + b"{" + pack(STEP))

    with TraceReader(path) as trace, pytest.raises(UserError, match="trace: damaged"):
        list(trace)
