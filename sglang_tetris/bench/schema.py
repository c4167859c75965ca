"""The result of a run as it is written to a file and read again: one versioned JSON object."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from sglang_tetris.errors import UserError


class ResultError(UserError):
    """A file is no result of this benchmark, or two results cannot be compared."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Environment(_Model):
    """Where and with what the numbers were taken."""

    argv: list[str]
    git_sha: str | None  # of the checkout that ran, None for an installed wheel
    is_git_dirty: bool | None
    packages: dict[str, str]
    python: str
    platform: str
    cpu: str
    threads: int  # that our own servers compute with
    device: str | None  # that the servers compute on
    dtype: str | None


class Workload(_Model):
    """What was asked; results with different workloads are not compared."""

    dataset: str
    fingerprint: str  # of all that users say
    num_chats: int
    num_turns: int
    model: str
    max_tokens: int
    temperature: float
    seed: int
    think_time_s: float
    system_prompt: str | None


class Protocol(_Model):
    """How often and under which loads it was asked."""

    concurrency: list[int]
    rate: list[float]
    repeats: int
    segments: int  # that a repeat is held in at least, cut from the chats or lap by lap
    enough_s: float  # of an arm's repeat, without a further lap
    warmup: int


class Percentiles(_Model):
    """Of all repeats together; None where nothing was measured."""

    p50: float | None
    p90: float | None
    p99: float | None


class TimePoint(_Model):
    """The mean over some consecutive decode steps."""

    time_s: float  # of measuring, since the first step
    capacity: float
    rows: float


class Piece(_Model):
    """A part of the chats, held once by one arm."""

    repeat: int
    lap: int  # of the repeat
    part: int  # of the chats
    seconds: float  # from the first request to the last answer
    num_output_tokens: int


class ArmResult(_Model):
    """One arm under one load. None where its server does not say."""

    arm: str
    concurrency: int | None  # chats at once, None in an open loop
    rate: float | None  # chats per second, None in a closed loop
    output_tokens_per_s: list[float]  # per repeat
    output_tokens_per_s_median: float | None
    output_tokens_per_s_low: float | None  # 95 percent interval of the geometric mean
    output_tokens_per_s_high: float | None
    ttft_s: Percentiles
    itl_s: Percentiles
    e2e_s: Percentiles
    accept_length: float | None  # per request and step, the bonus counted
    accept_length_outside_loops: float | None
    verify_accept_rate: float | None
    draft_accept_rate: float | None
    target_efficiency: float | None
    rows_per_step: float | None
    cached_token_share: float | None  # of the prompt tokens
    phase_seconds: dict[str, float]  # per phase, the sum of all repeats
    errors: int  # turns that failed, all repeats
    error_messages: list[str]  # the different ones, a few
    failure: str | None  # why the arm was given up, with its server's last words
    repeats: list[int]  # of which there are measurements, from 0
    num_turns: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    seconds: list[float]  # per repeat, the sum over its pieces
    pieces: list[Piece]  # in the order of their measurement
    step_counts: dict[str, int]  # sums over the decode steps of all repeats
    accept_length_by_category: dict[str, float]
    verify_lens: list[int]  # index: rows of one request, the root counted; value: how often
    over_time: list[TimePoint]  # of the first lap, without the time between its pieces


class Ratio(_Model):
    """Output throughput of an arm over that of a baseline, paired piece by piece."""

    arm: str
    baseline: str
    concurrency: int | None
    rate: float | None
    ratio: float
    low: float | None  # 95 percent interval, None for a single piece
    high: float | None


class BenchResult(_Model):
    """All that a run found."""

    schema_version: Literal[1] = 1
    is_complete: bool  # False after an interruption
    environment: Environment
    workload: Workload
    protocol: Protocol
    arms: list[ArmResult]
    ratios: list[Ratio]

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        alias_generator=lambda name: "schema" if name == "schema_version" else name,
        populate_by_name=True,
    )

    def to_json(self) -> str:
        """Return the result on one line."""
        return self.model_dump_json(by_alias=True)


def read_result(path: Path) -> BenchResult:
    """Return the result in a file; raise ``ResultError`` if there is none."""
    try:
        return BenchResult.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ResultError(
            f"{path}: no result of `sglang-tetris bench`: {where}: {first['msg']}"
        ) from None
