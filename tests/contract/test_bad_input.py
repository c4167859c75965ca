"""What a user gets wrong is one line that names it, and nothing has been started.

Almost all of it goes through ``serve`` and ``bench`` in processes forked from one that has SGLang
imported already; a few command lines are run as a user runs them.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sglang_tetris.models.demo_target import demo_target
from tests.support import forked_cli
from tests.support.command_line import as_a_user, fake_distribution

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(180)]


class Row(NamedTuple):
    """A mistake: its words, with names from ``places`` in braces, and parts of the line it gets."""

    words: str
    said: tuple[str, ...]
    environ: dict[str, str] = {}
    command: str = "serve"


def bench(words: str, *said: str) -> Row:
    """Return a mistake in a command line of the benchmark."""
    return Row(words, said, command="bench")


DRAFT = "--speculative-draft-model-path"
ROWS = {
    # Our settings.
    "negative capacity": Row("--tetris-capacity -1", ("--tetris-capacity '-1'", "equal to 0")),
    "capacity no number": Row("--tetris-capacity many", ("--tetris-capacity 'many'", "integer")),
    "no draft tokens": Row("--tetris-draft-tokens 0", ("--tetris-draft-tokens '0'", "equal to 1")),
    "too many draft tokens": Row("--tetris-draft-tokens 65", ("'65'", "less than or equal to 7")),
    "more verified than drafted": Row(
        "--tetris-tokens-per-request 5", ("--tetris-tokens-per-request is 5", "--tetris-draft-tok")
    ),
    "unknown source": Row("--tetris-sources eagle", ("--tetris-sources 'eagle'", "'lookup'")),
    "unknown policy": Row("--tetris-policy best", ("--tetris-policy 'best'", "'per_request'")),
    "draft model missing for lm": Row("--tetris-sources lm", ("lm needs a draft", DRAFT)),
    "draft model given for lookup": Row(
        f"--tetris-sources lookup {DRAFT} {{target}}", ("--tetris-sources lookup", DRAFT)
    ),
    "unknown name": Row("--tetris-capactiy 3", ("--tetris-capactiy", "known: --tetris-capacity")),
    "abbreviated name": Row("--tetris-cap 3", ("--tetris-cap;", "known: --tetris-capacity")),
    "step log nowhere": Row(
        "--tetris-step-log {none}/log", ("--tetris-step-log", "cannot be written")
    ),
    "trace nowhere": Row("--tetris-trace {none}/trace", ("--tetris-trace", "cannot be written")),
    "stream for everyone": Row(
        "--tetris-step-stream tcp://0.0.0.0:5555", ("--tetris-step-stream", "from other machines")
    ),
    "stream where another listens": Row(
        "--tetris-step-stream tcp://127.0.0.1:{port}", ("--tetris-step-stream", "in use")
    ),
    "control for everyone": Row(
        "--tetris-control tcp://*:5555",
        ("--tetris-control", "use tcp://127.0.0.1:PORT"),
        {"SGLANG_TETRIS_CONTROL_TOKEN": "secret"},
    ),
    "control without a secret": Row(
        "--tetris-control ipc://{list}", ("--tetris-control", "set SGLANG_TETRIS_CONTROL_TOKEN")
    ),
    "config file missing": Row("--tetris-config-file {none}", ("--tetris-config-file", "No such")),
    "config file malformed": Row("--tetris-config-file {broken}", ("broken.json", "not JSON")),
    "config file no object": Row("--tetris-config-file {list}", ("list.json", "one JSON object")),
    "config file unknown name": Row(
        "--tetris-config-file {unknown}", ("unknown.json", "'capasity'", "known: capacity")
    ),
    "config file bad value": Row(
        "--tetris-config-file {negative}", ("negative.json: capacity -1", "equal to 0")
    ),
    "unknown variable": Row(
        "", ("SGLANG_TETRIS_CAPASITY", "known: "), {"SGLANG_TETRIS_CAPASITY": "3"}
    ),
    "bad variable": Row("", ("SGLANG_TETRIS_CAPACITY 'x'",), {"SGLANG_TETRIS_CAPACITY": "x"}),
    # SGLang's flags, and the port.
    "unknown flag": Row("--max-totl-tokens 9", ("unrecognized arguments: --max-totl-tokens",)),
    "flag without value": Row(
        "--max-total-tokens", ("--max-total-tokens", "expected one argument")
    ),
    "flag with a bad value": Row("--max-total-tokens x", ("--max-total-tokens", "'x'")),
    "unknown backend": Row("--attention-backend x", ("--attention-backend", "'x'")),
    "backend without verification": Row(
        "--attention-backend torch_native", ("--attention-backend torch_native", "tetris_cpu")
    ),
    "prefill backend without verification": Row(
        "--prefill-attention-backend torch_native", ("--prefill-attention-backend torch_native",)
    ),
    "capacity under the other policy": Row(
        "--tetris-capacity 8", ("--tetris-capacity is not read under --tetris-policy per_request",)
    ),
    "the name of one kind of draft": Row(
        "--speculative-algorithm TETRIS_LM", ("--speculative-algorithm TETRIS_LM", "give TETRIS")
    ),
    "pages": Row("--page-size 16", ("--page-size 16", "Triton", "use 1")),
    "half precision": Row("--dtype float16", ("--dtype gives torch.float16", "--dtype bfloat16")),
    "an algorithm for GPUs": Row(
        "--speculative-algorithm DFLASH", ("--speculative-algorithm DFLASH", "use TETRIS")
    ),
    "an algorithm to compile": Row(
        "--speculative-algorithm NGRAM",
        ("--speculative-algorithm NGRAM", "'no-such-compiler' is not installed"),
        {"CXX": "no-such-compiler"},
    ),
    "port too high": Row("--port 70000", ("--port 70000", "between 1 and 65535")),
    "port no number": Row("--port http", ("--port", "'http'")),
    "port in use": Row("--port {port}", ("--port", "in use", "choose another")),
    "host of another machine": Row("--host 192.0.2.1", ("--host 192.0.2.1",)),
    "config of SGLang missing": Row("--config {none}.yaml", ("Config file not found",)),
    "two minds": Row("--no-speculation --speculative-algorithm EAGLE", ("--no-speculation",)),
    "settings without their algorithm": Row(
        "--no-speculation --tetris-capacity 3", ("--tetris-capacity", "--speculative-algorithm")
    ),
    # Models.
    "no target": Row("--model-path {none}", ("--model-path", "no such directory")),
    "target without config": Row("--model-path {empty}", ("--model-path", "no config.json")),
    "target damaged": Row("--model-path {garbage}", ("--model-path", "config.json: Expecting")),
    "target with sliding windows": Row("--model-path {sliding}", ("a sliding-window model",)),
    "target recurrent": Row("--model-path {recurrent}", ("a hybrid or recurrent model",)),
    "no draft": Row(f"{DRAFT} {{none}}", (DRAFT, "no such directory")),
    "draft without config": Row(f"{DRAFT} {{empty}}", (DRAFT, "no config.json")),
    "draft with a smaller vocabulary": Row(
        f"{DRAFT} {{smaller}}", (DRAFT, "vocabulary of 100", "49152")
    ),
    "draft with another vocabulary": Row(f"{DRAFT} {{permuted}}", (DRAFT, "other ids")),
    # What TETRIS refuses.
    "tensor parallel": Row("--tp-size 2", ("--tp-size 2", "use 1")),
    "data parallel": Row("--dp-size 2", ("--dp-size", "router")),
    "data-parallel attention": Row("--enable-dp-attention", ("--enable-dp-attention",)),
    "pipeline parallel": Row("--pp-size 2", ("--pp-size 2", "use 1")),
    "disaggregation": Row("--disaggregation-mode prefill", ("--disaggregation-mode prefill",)),
    "adapters": Row("--enable-lora", ("--enable-lora",)),
    "rejection sampling": Row(
        "--speculative-use-rejection-sampling", ("--speculative-use-rejection-sampling",)
    ),
    "mixed chunks": Row("--enable-mixed-chunk", ("--enable-mixed-chunk",)),
    "outlines": Row("--grammar-backend outlines", ("--grammar-backend outlines", "xgrammar")),
    "adaptive widths": Row("--speculative-adaptive", ("--speculative-adaptive", "--tetris-policy")),
    "two batches": Row("--enable-two-batch-overlap", ("--enable-two-batch-overlap",)),
    "deterministic kernels": Row(
        "--enable-deterministic-inference", ("--enable-deterministic-inference",)
    ),
    "steps": Row("--speculative-num-steps 3", ("--speculative-num-steps", "--tetris-draft-tokens")),
    "top-k": Row("--speculative-eagle-topk 1", ("--speculative-eagle-topk", "--tetris-draft-tok")),
    "width": Row("--speculative-num-draft-tokens 4", ("--speculative-num-draft-tokens",)),
    # The benchmark.
    "unknown arm": bench("--arms none,best", "--arms: unknown arm 'best'", "allowed: none, "),
    "arm out of range": bench("--arms paper:9+9", "--arms paper:9+9", "less than or equal to 7"),
    "arm without its draft": bench("--arms lm:fixed:4", "lm needs a draft", "--draft-model-path"),
    "draft without an arm": bench("--arms none --draft-model-path x", "--draft-model-path: no arm"),
    "arm twice": bench("--arms none,none", "'none' is named twice"),
    "arms file missing": bench("--arms-file {none}", "--arms-file", "No such file"),
    "arms file malformed": bench("--arms-file {broken}", "broken.json: Invalid JSON"),
    "server that is not there": bench("--arms url:http://127.0.0.1:9", "cannot be reached"),
    "data missing": bench("--dataset {none}", "--dataset", "No such file"),
    "data empty": bench("--dataset {nothing}", "--dataset", "no chat"),
    "data malformed": bench("--dataset {chats}", "chats.json, line 2: turns: must be a list"),
    "result nowhere": bench("--json {none}/x", "--json", "cannot be written: No such file"),
    "page nowhere": bench("--html {empty}", "--html", "cannot be written: Is a directory"),
    "plots nowhere": bench("--plots {broken}", "--plots", "cannot be written: File exists"),
    "target of no server": bench("--model-path {none}", "--model-path", "no such directory"),
    "no concurrency": bench("--concurrency 0", "--concurrency: '0': must be a whole number above"),
    "negative rate": bench("--rate -1", "--rate: '-1': must be a number above 0"),
    "endless think time": bench("--think-time inf", "--think-time: 'inf': must be a number"),
    "unknown option": bench("--arm none", "unrecognized arguments: --arm none"),
    "no result to compare": bench("compare {none} {broken}", "none: No such file"),
    "another file to compare": bench("compare {list} {broken}", "list.json: no result of"),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Make the files, the models and the busy port that the rows name."""
    root = tmp_path_factory.mktemp("bad_input")
    contents = {
        "broken": '{"capacity": ',
        "list": "[1]",
        "unknown": '{"capasity": 1}',
        "negative": '{"capacity": -1}',
        "nothing": "",
        "chats": '{"turns": ["hello"]}\n{"turns": []}\n',
    }
    for name, content in contents.items():
        (root / f"{name}.json").write_text(content)
    (root / "empty").mkdir()
    config = json.loads((demo_target() / "config.json").read_text())
    models = {
        "garbage": "not JSON",
        "sliding": json.dumps(
            config | {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2"}
        ),
        "recurrent": json.dumps(
            config | {"architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1"}
        ),
        "smaller": json.dumps(config | {"vocab_size": 100}),
        "permuted": json.dumps(config),
    }
    for name, content in models.items():
        (root / name).mkdir()
        (root / name / "config.json").write_text(content)
    tokenizer = json.loads((demo_target() / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    one, other = list(vocabulary)[100:102]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    (root / "permuted" / "tokenizer.json").write_text(json.dumps(tokenizer))

    with socket.create_server(("127.0.0.1", 0)) as busy:
        yield (
            {name: str(root / f"{name}.json") for name in contents}
            | {name: str(root / name) for name in (*models, "empty", "none")}
            | {"target": str(demo_target()), "port": str(busy.getsockname()[1])}
        )


@pytest.fixture(scope="module")
def outcomes(places: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Run all rows."""
    rows = [
        {"argv": [row.command, *row.words.format(**places).split()], "environ": row.environ}
        for row in ROWS.values()
    ]
    return dict(zip(ROWS, forked_cli.outcomes(rows, timeout_s=150), strict=True))


@pytest.mark.parametrize("name", ROWS)
def test_a_mistake_is_one_line_and_exit_code_2(
    name: str, outcomes: dict[str, dict[str, Any]]
) -> None:
    outcome = outcomes[name]

    assert outcome["stderr"].startswith("error: "), outcome
    assert outcome["stderr"].count("\n") == 1, outcome["stderr"]
    assert [part for part in ROWS[name].said if part not in outcome["stderr"]] == [], outcome
    assert outcome["exit_code"] == 2
    assert outcome["stdout"] == ""
    assert outcome["num_left"] == 0


def test_another_sglang_is_refused_before_it_is_imported(tmp_path: Path) -> None:
    other = fake_distribution(tmp_path, "sglang", "0.5.31")

    result = as_a_user("serve", PYTHONPATH=str(other))

    assert result.returncode == 2
    assert result.stderr == (
        "error: sglang-tetris is built for SGLang 0.5.23, found 0.5.31; "
        "pip install sglang==0.5.23\n"
    )


def test_a_plugin_that_sglang_does_not_load_is_noticed() -> None:
    result = as_a_user("serve", SGLANG_PLUGINS="another")

    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == (
        "error: SGLang did not load the plugin of sglang-tetris; `sglang-tetris doctor` says why\n"
    )
