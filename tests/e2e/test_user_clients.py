"""SGLang's own command serves TETRIS, and its users' clients work against it unchanged."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from sglang_tetris.cli.launch import Server, running_server
from sglang_tetris.models.demo_target import demo_target
from tests.support.servers import Servers

pytestmark = [pytest.mark.sglang, pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run `sglang serve` with the environment that the README documents for a CPU."""
    servers.close()  # to have the memory back
    command = [str(Path(sys.executable).with_name("sglang")), "serve"]
    args = ["--model-path", str(demo_target()), "--speculative-algorithm", "TETRIS"]
    args += ["--max-total-tokens", "20000", "--sleep-on-idle"]
    log = tmp_path_factory.mktemp("sglang") / "server.log"
    environ = {"SGLANG_USE_CPU_ENGINE": "1"}
    with running_server(args, environ=environ, log=log, command=command) as started:
        yield started


def test_the_openai_client_chats(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none")

    reply = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "What is the capital of France?"}],
        temperature=0,
        max_tokens=32,
    )

    assert "Paris" in (reply.choices[0].message.content or "")


def test_a_frontend_program_generates_and_forks(server: Server) -> None:
    import sglang as sgl  # late: it is heavy, and this test needs it only here

    @sgl.function  # type: ignore[untyped-decorator]
    def program(s: sgl.ProgramState) -> None:
        s += sgl.user("Name one animal.")
        s += sgl.assistant(sgl.gen("animal", max_tokens=12, temperature=0))
        forks = s.fork(2)
        for fork, question in zip(forks, ("What does it eat?", "Where does it live?"), strict=True):
            fork += sgl.user(question)
            fork += sgl.assistant(sgl.gen("answer", max_tokens=16, temperature=0))
        s["answers"] = [fork["answer"] for fork in forks]

    state = program.run(backend=sgl.RuntimeEndpoint(server.base_url))

    assert state["animal"].strip()
    assert len(state["answers"]) == 2
    assert all(answer.strip() for answer in state["answers"])


def test_speculation_shows_in_the_reply(server: Server) -> None:
    import httpx

    body = {
        "text": "one, two, three, one, two, three, one, two,",
        "sampling_params": {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True},
    }

    meta = httpx.post(f"{server.base_url}/generate", json=body, timeout=120).json()["meta_info"]

    assert meta["spec_accept_length"] > 1.5
    assert os.environ.get("SGLANG_USE_CPU_ENGINE") is None, "the tests' own process is no engine"
