"""Supplies ``sgl_kernel`` to SGLang's CPU engine where the installed one cannot.

SGLang imports it while its own modules load, before any plugin and in every spawned child, so
a ``.pth`` file installs this finder when the interpreter starts. A real ``sgl_kernel`` that
imports and has its CPU operators wins; the CUDA build that a plain ``pip install sglang``
brings does not import without a CUDA driver.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

_MODULE = "sgl_kernel"
_OPERATORS = Path(__file__).with_name("operators.py")
_SUBMODULES = {"sgl_kernel.speculative": Path(__file__).with_name("speculation.py")}
_CPU_OPERATOR = "copy_all_layer_kv_cache_cpu"  # SGLang needs it at start-up


def is_cpu_engine() -> bool:
    """Whether this process runs SGLang's CPU engine (srt/utils/common.py, ``is_cpu``)."""
    return os.environ.get("SGLANG_USE_CPU_ENGINE") == "1"


def install() -> None:
    """Put the finder first; without the CPU engine, or a second time, do nothing."""
    if is_cpu_engine() and not any(isinstance(item, OperatorFinder) for item in sys.meta_path):
        sys.meta_path.insert(0, OperatorFinder())


class OperatorFinder(MetaPathFinder):
    """Answers for ``sgl_kernel`` only."""

    def __init__(self) -> None:
        self._is_trying_real = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the real module if it works on this CPU, else ours."""
        if fullname in _SUBMODULES and sys.modules[_MODULE].__file__ == str(_OPERATORS):
            return spec_from_file_location(fullname, _SUBMODULES[fullname])
        if fullname != _MODULE or self._is_trying_real:
            return None
        self._is_trying_real = True
        try:
            real = _import_real()
        finally:
            self._is_trying_real = False
        if real is not None:
            return ModuleSpec(_MODULE, _Loaded(real))
        return spec_from_file_location(_MODULE, _OPERATORS, submodule_search_locations=[])


class _Loaded(Loader):
    """Hands out a module that is already there."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        own = self._module.__spec__
        assert own is not None
        # The import system marks the module with the spec it was found by; keep the real one.
        spec.loader, spec.origin = own.loader, own.origin
        spec.submodule_search_locations = own.submodule_search_locations
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """The module has run already."""


def _import_real() -> ModuleType | None:
    """Import the installed ``sgl_kernel``; None if it is missing, broken or without CPU operators."""
    try:
        module = importlib.import_module(_MODULE)
    except ImportError:
        module = None
    if module is not None and _has_cpu_operators():
        return module
    for name in [name for name in sys.modules if name.split(".")[0] == _MODULE]:
        del sys.modules[name]
    return None


def _has_cpu_operators() -> bool:
    import torch  # late: this module is imported at the start of the interpreter

    return hasattr(torch.ops.sgl_kernel, _CPU_OPERATOR)
