"""What a server says of its steps: in its log, on its stream, in its trace, on /metrics, in answers.

One account each, and all of them agree. A random model of 32 tokens is enough: it serves fast and
repeats itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import zmq

from sglang_tetris.cli.launch import free_port
from sglang_tetris.control import switch
from sglang_tetris.engine.prometheus import COUNTERS, SECONDS
from sglang_tetris.errors import TetrisError
from sglang_tetris.metrics import StepRecord, StepTotals, unpack_step
from sglang_tetris.trace import TraceReader
from tests.support.generate import generate
from tests.support.scrape import counters
from tests.support.servers import Started, start
from tests.support.tiny_model import SERVER_ARGS, tiny_model

pytestmark = [pytest.mark.sglang, pytest.mark.e2e, pytest.mark.timeout(600)]

TOKEN = "a secret"
NUM_TOKENS = 60


@dataclass
class Watched:
    """A server with all its accounts."""

    started: Started
    control: str
    trace: Path
    subscriber: zmq.Socket[bytes]
    heard: list[StepRecord] = field(default_factory=list)

    def steps(self) -> list[StepRecord]:
        """Return all steps so far, from the log."""
        return self.started.steps()

    def hear(self) -> list[StepRecord]:
        """Return all steps so far, from the stream."""
        while self.subscriber.poll(500):
            self.heard.append(unpack_step(self.subscriber.recv()))
        return self.heard

    def ask(self, *prompts: list[int], **body: Any) -> list[dict[str, Any]]:
        """Return greedy answers."""
        params = {"temperature": 0, "max_new_tokens": NUM_TOKENS, "ignore_eos": True}
        bodies = [{"input_ids": ids, "sampling_params": params} | body for ids in prompts]
        return generate(self.started.base_url, bodies)

    def switch(self, **settings: Any) -> None:
        """Change its settings."""
        switch(self.control, TOKEN, settings)


@pytest.fixture(scope="module", params=["lookup", "self"])
def watched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    """Start a server that drafts by lookup, or with itself as its draft."""
    directory = tmp_path_factory.mktemp("watched")
    control, trace = f"tcp://127.0.0.1:{free_port()}", directory / "trace"
    stream = f"ipc://{directory}/steps"
    watch = ("--tetris-control", control, "--tetris-step-stream", stream, "--tetris-trace")
    with (
        zmq.Context() as context,
        context.socket(zmq.SUB) as subscriber,
        start(
            request.param,
            directory,
            *(*watch, str(trace), "--enable-metrics", *SERVER_ARGS),
            environ={"SGLANG_TETRIS_CONTROL_TOKEN": TOKEN},
            model=tiny_model(),
        ) as started,
    ):
        subscriber.linger = 0
        subscriber.subscribe(b"")
        subscriber.connect(stream)
        yield Watched(started, control, trace, subscriber)


def totals(steps: list[StepRecord]) -> StepTotals:
    """Return the sums of some steps."""
    result = StepTotals()
    for step in steps:
        result.add(step)
    return result


PROMPTS = [[1 + i, 5, 9, 5, 9, 2 * i] for i in range(6)]


def test_an_answer_carries_its_own_counts(watched: Watched) -> None:
    before = len(watched.steps())

    (reply,) = watched.ask(PROMPTS[0])

    sums, meta = totals(watched.steps()[before:]), reply["meta_info"]
    assert meta["num_steps"] == sums.num_steps > 0
    assert meta["num_drafted"] == sums.num_drafted > 0
    assert meta["num_verified"] == sums.num_selected > 0
    assert meta["num_accepted"] == sums.num_correct_drafts > 0
    assert meta["verify_accept_rate"] == sums.verify_accept_rate
    assert meta["draft_accept_rate"] == sums.draft_accept_rate
    assert meta["accept_length"] == sums.accept_length
    assert sums.num_emitted == meta["completion_tokens"] - 1  # the first is the prefill's
    # SGLang's own fields stay, and agree where they count the same.
    assert meta["spec_verify_ct"] == meta["num_steps"]
    assert meta["spec_num_correct_drafts"] == meta["num_accepted"]


def test_the_last_chunk_of_a_stream_carries_them(watched: Watched) -> None:
    (whole,) = watched.ask(PROMPTS[1])
    body = {
        "input_ids": PROMPTS[1],
        "sampling_params": {"temperature": 0, "max_new_tokens": NUM_TOKENS, "ignore_eos": True},
        "stream": True,
    }

    metas = []
    with httpx.stream(
        "POST", f"{watched.started.base_url}/generate", json=body, timeout=300
    ) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                metas.append(json.loads(line.removeprefix("data: "))["meta_info"])

    assert len(metas) > 2
    assert not any("num_steps" in meta for meta in metas[:-1])
    assert metas[-1]["num_steps"] == whole["meta_info"]["num_steps"]


def test_the_counts_of_all_answers_add_up(watched: Watched) -> None:
    before = len(watched.steps())

    metas = [reply["meta_info"] for reply in watched.ask(*PROMPTS)]

    sums = totals(watched.steps()[before:])
    assert sum(meta["num_steps"] for meta in metas) == sums.num_requests
    assert sum(meta["num_verified"] for meta in metas) == sums.num_selected
    assert sum(meta["num_drafted"] for meta in metas) == sums.num_drafted
    assert sum(meta["num_accepted"] for meta in metas) == sums.num_correct_drafts
    assert sum(sums.verify_lens) == sums.num_requests
    assert sum(rows * count for rows, count in enumerate(sums.verify_lens)) == sums.num_rows


@pytest.mark.parametrize(
    ("settings", "capacity"),
    [
        ({"policy": "fixed", "capacity": 0}, 0),
        ({"policy": "per_request", "tokens_per_request": 1, "draft_tokens": 1}, 1),
        ({"policy": "fixed", "capacity": 2, "draft_tokens": 2}, 2),
        ({"policy": "fixed", "capacity": 0, "draft_tokens": 1}, 0),
        ({"policy": "fixed", "capacity": 8, "draft_tokens": 3}, 8),
    ],
)
def test_a_switch_holds_from_the_next_step_on_and_changes_no_token(
    watched: Watched, settings: dict[str, Any], capacity: int
) -> None:
    (expected,) = watched.ask(PROMPTS[2])
    before = len(watched.steps())

    watched.switch(**settings)
    (reply,) = watched.ask(PROMPTS[2])

    steps = [step for step in watched.steps()[before:] if step.kind == "decode"]
    assert reply["output_ids"] == expected["output_ids"]
    assert {step.capacity for step in steps} == {capacity}
    depth = settings.get("draft_tokens", 0) if capacity else 0
    assert max(step.num_drafted for step in steps) <= depth
    if watched.started.step_log.parent.name == "self":  # a hole in the draft's KV would show
        assert totals(steps).num_wasted_rows == 0
        assert max(step.num_drafted for step in steps) == depth


def test_a_wrong_secret_changes_nothing(watched: Watched) -> None:
    with pytest.raises(TetrisError, match="refused: wrong token"):
        switch(watched.control, "another", {"policy": "fixed", "capacity": 5})


def test_stream_trace_and_metrics_agree_with_the_log(watched: Watched) -> None:
    watched.switch(policy="fixed", capacity=3)
    watched.ask(*PROMPTS)

    steps = watched.steps()
    heard = watched.hear()
    assert heard == steps[len(steps) - len(heard) :]
    assert len(heard) > 50

    decodes = [step for step in steps if step.kind == "decode"]
    with TraceReader(watched.trace) as trace:
        assert trace.header.model == tiny_model().name
        items = list(trace)
    assert [item.time_s for item in items] == [step.time_s for step in decodes]
    for item, step in zip(items, decodes, strict=True):
        assert sum(len(request.scores) for request in item.requests) == step.num_drafted
        assert sum(len(request.selected) for request in item.requests) == step.num_selected
        assert sum(len(request.accepted) for request in item.requests) == step.num_correct_drafts

    values = counters(watched.started.base_url)
    sums = totals(steps)
    assert {name: values[name, None] for name in COUNTERS} == {
        name: getattr(sums, name if name == "capacity" else f"num_{name}") for name in COUNTERS
    }
    for phase, seconds in sums.seconds.items():
        assert values[SECONDS, phase] == pytest.approx(seconds)
    assert sum(sums.seconds.values()) > 0
