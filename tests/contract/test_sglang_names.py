"""What we lean on in the installed SGLang is there and has the shape that we know."""

from __future__ import annotations

import ast
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from sglang_tetris.engine import compat
from sglang_tetris.errors import EngineMismatchError

pytestmark = [
    pytest.mark.sglang,
    # What SGLang and its dependencies say of themselves while they are imported.
    pytest.mark.filterwarnings(
        "ignore:Only CUDA", "ignore:Triton is not supported", "ignore::DeprecationWarning"
    ),
]

PACKAGE = Path(__file__).parents[2] / "sglang_tetris"


def imported_names() -> Iterator[tuple[str, str]]:
    """Yield every (module, name) that our code imports from SGLang, early or late."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang."):
                yield from ((str(node.module), alias.name) for alias in node.names)


def test_this_is_the_supported_version() -> None:
    compat.check_version()


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "version", lambda name: "0.5.31")

    with pytest.raises(EngineMismatchError, match=r"built for SGLang 0\.5\.23, found 0\.5\.31"):
        compat.check_version()


def test_every_imported_name_exists() -> None:
    """In a process of its own, as the CPU engine: elsewhere some modules ask for a GPU."""
    names = sorted(set(imported_names()))
    program = "import importlib\n" + "".join(
        f"assert hasattr(importlib.import_module({module!r}), {name!r}), {name!r}\n"
        for module, name in names
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"SGLANG_USE_CPU_ENGINE": "1"},
        capture_output=True,
        text=True,
    )

    assert len(names) > 20
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("target", compat.HOOKED)
def test_every_hooked_function_exists(target: str) -> None:
    assert callable(compat.resolve(target))


def test_a_hook_target_that_is_gone_is_named() -> None:
    with pytest.raises(EngineMismatchError, match="no_such_function"):
        compat.resolve("sglang.srt.server_args.ServerArgs.no_such_function")


def test_the_hooked_products_take_what_we_pass() -> None:
    linear = inspect.signature(compat.resolve(compat.LINEAR_APPLY)).parameters
    lm_head = inspect.signature(compat.resolve(compat.LM_HEAD)).parameters

    assert list(linear) == ["self", "layer", "x", "bias"]
    assert list(lm_head)[:3] == ["self", "hidden_states", "lm_head"]


def test_an_answer_takes_further_fields() -> None:
    streamer = compat.resolve(
        "sglang.srt.managers.scheduler_components.output_streamer.SchedulerOutputStreamer"
    )
    update = inspect.signature(compat.resolve(compat.UPDATE_META_INFO)).parameters

    assert streamer.has_additional_customized_info is False
    assert list(inspect.signature(streamer.build_additional_customized_info).parameters) == [
        "self",
        "reqs",
    ]
    assert list(update)[1:] == ["meta_info", "state", "customized_info", "index", "finish_reason"]


def test_the_methods_that_the_plugin_base_class_lacks() -> None:
    """When SGLang gives CustomSpecAlgo these, TetrisAlgorithm can lose them."""

    def methods(cls: type) -> set[str]:
        return {name for name, value in vars(cls).items() if inspect.isfunction(value)}

    lacking = {name for name in methods(SpeculativeAlgorithm) if not hasattr(CustomSpecAlgo, name)}
    assert {name for name in lacking if not name.startswith("_")} == {
        "carries_draft_hidden_states",
        "create_future_map",
        "get_platform_worker_cls",
        "need_topk",
    }
