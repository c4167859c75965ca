"""Each patch applies to the pinned SGLang and brings what it promises."""

from __future__ import annotations

import importlib.util
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
    """Copy the directory that the patches touch, laid out as in site-packages."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    speculative = Path(spec.origin).parent / "srt" / "speculative"
    shutil.copytree(speculative, tmp_path / "sglang" / "srt" / "speculative")
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
