"""The arrows between the packages point one way (DESIGN in one table)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "sglang_tetris"
# What a unit may import when it is loaded, besides the standard library and itself.
MAY_IMPORT = {
    "__init__": set[str](),
    "errors": set[str](),
    "plugin": set[str](),
    "config": {"endpoints", "errors", "pydantic"},
    "endpoints": set[str](),
    "loops": set[str](),
    "metrics": {"errors", "msgspec"},
    "trace": {"errors", "msgspec"},
    "control": {"endpoints", "errors", "msgspec", "zmq"},
    "core": {"torch"},
    "cpu": {"core", "torch", "numpy", "numba", "llvmlite"},
    "attention": {"core", "errors", "torch", "numpy", "numba", "sglang"},
    "engine": {
        "attention", "core", "cpu", "config", "errors", "loops", "metrics", "trace",
        "torch", "numpy", "numba", "sglang", "msgspec", "zmq",
    },
    "models": {
        "errors", "torch", "numpy", "gguf", "huggingface_hub", "rich", "safetensors",
        "tokenizers", "transformers",
    },
    "bench": {
        "config", "errors", "metrics",
        "httpx", "matplotlib", "msgspec", "numpy", "pydantic", "scipy", "uvloop",
    },
    # The command line loads SGLang late: `sglang-tetris --help` must not wait for it.
    "cli": {
        "bench", "config", "control", "cpu", "engine", "errors", "metrics", "models",
        "httpx", "psutil", "rich",
    },
}  # fmt: skip
MODULES = sorted(PACKAGE.rglob("*.py"))
STANDARD = frozenset(__import__("sys").stdlib_module_names)


def unit_of(path: Path) -> str:
    """Return the package or module at the top level that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def load_time_imports(tree: ast.Module) -> Iterator[str]:
    """Yield the modules imported outside functions and not only for type checkers."""
    todo: list[ast.stmt] = list(tree.body)
    for node in todo:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ClassDef)):
            todo.extend(
                child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)
            )


def test_the_table_names_every_unit() -> None:
    assert {unit_of(path) for path in MODULES} <= MAY_IMPORT.keys()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(path: Path) -> None:
    unit = unit_of(path)
    used = set()
    for module in load_time_imports(ast.parse(path.read_text())):
        parts = module.split(".")
        used.add(parts[1] if parts[0] == "sglang_tetris" and len(parts) > 1 else parts[0])

    assert used - STANDARD - {unit, "sglang_tetris"} <= MAY_IMPORT[unit]


def test_no_file_has_outgrown_its_subject() -> None:
    assert {
        path.name: n for path in MODULES if (n := len(path.read_text().splitlines())) > 400
    } == {}
