"""Each patch applies to the pinned SGLang and brings what it promises."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

PATCHES = sorted((Path(__file__).parents[2] / "patches").glob("sglang-*/*.patch"))
MISSING_METHODS = {
    "carries_draft_hidden_states",
    "create_future_map",
    "get_platform_worker_cls",
    "need_topk",
}

pytestmark = pytest.mark.sglang


@pytest.fixture
def engine_copy(tmp_path: Path) -> Path:
    """Copy the files that the patches touch, laid out as in site-packages."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent.parent
    for patch in PATCHES:
        for name in re.findall(r"^--- a/(\S+)", patch.read_text(), flags=re.MULTILINE):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(installed / name, tmp_path / name)
    return tmp_path


def apply(patch: Path, engine: Path) -> None:
    subprocess.run(["git", "apply", "-p1", str(patch)], cwd=engine, check=True)


def test_every_patch_is_for_the_installed_version() -> None:
    assert PATCHES
    assert {patch.parent.name for patch in PATCHES} == {f"sglang-{version('sglang')}"}


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_the_patch_applies_to_the_pinned_sources(patch: Path, engine_copy: Path) -> None:
    apply(patch, engine_copy)


def test_the_patched_base_class_has_the_methods_that_the_scheduler_calls(engine_copy: Path) -> None:
    (patch,) = (patch for patch in PATCHES if patch.name.startswith("0001"))
    registry = engine_copy / "sglang" / "srt" / "speculative" / "spec_registry.py"
    before = load_custom_algorithm(registry)

    apply(patch, engine_copy)
    after = load_custom_algorithm(registry)

    assert set(dir(after)) - set(dir(before)) == MISSING_METHODS


def test_the_patched_decoding_advances_the_grammar_before_it_reads_the_finish_state(
    engine_copy: Path,
) -> None:
    (patch,) = (patch for patch in PATCHES if patch.name.startswith("0002"))
    source = engine_copy / "sglang/srt/managers/scheduler_components/batch_result_processor.py"
    assert calls_in_decode(source) == ["update_finish_state", "_accept_grammar_tokens"]

    apply(patch, engine_copy)

    assert calls_in_decode(source) == ["_accept_grammar_tokens", "update_finish_state"]


def calls_in_decode(source: Path) -> list[str]:
    """Return the two calls in question, in the order of the lines of the plain decode's loop."""
    (method,) = (
        node
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == "process_batch_result_decode"
    )
    calls = [
        (node.lineno, node.func.attr)
        for node in ast.walk(method)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    wanted = {"update_finish_state", "_accept_grammar_tokens"}
    return [name for _, name in sorted(calls) if name in wanted]


def load_custom_algorithm(registry: Path) -> type:
    """Run a copy of SGLang's registry under a name of its own; the real module stays as it is."""
    spec = importlib.util.spec_from_file_location("registry_under_test", registry)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    algorithm = module.CustomSpecAlgo
    assert isinstance(algorithm, type)
    return algorithm
