"""Score, select, lay out and accept never wait for the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from sglang_tetris.core.acceptance import Acceptance, accept
from sglang_tetris.core.calibration import Calibration, score
from sglang_tetris.core.candidates import CandidateTrees
from sglang_tetris.core.layout import lay_out
from sglang_tetris.core.selection import select
from tests import builders

READS_DATA = {
    "aten::_local_scalar_dense",
    "aten::bincount",
    "aten::equal",
    "aten::is_nonzero",
    "aten::masked_select",
    "aten::nonzero",
    "aten::repeat_interleave",
    "aten::unique_consecutive",
    "aten::_unique2",
}
LEAVES_DEVICE = {"cpu", "item", "numpy", "tolist"}


class _NoSync(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operators whose result the host has to wait for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        is_mask = name in ("aten::index", "aten::index_put_") and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if name in READS_DATA or is_mask:
            raise AssertionError(f"{name} waits for the device")
        return func(*args, **(kwargs or {}))


class _NoExport(TorchFunctionMode):
    """Refuses methods that copy to the host without an operator of their own."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in LEAVES_DEVICE:
            raise AssertionError(f"{func.__name__} waits for the device")
        return func(*args, **(kwargs or {}))


@contextmanager
def no_sync() -> Iterator[None]:
    with _NoSync(), _NoExport():  # type: ignore[no-untyped-call]
        yield


def step(
    trees: CandidateTrees, calibration: Calibration, capacity: int, sampled: torch.Tensor
) -> Acceptance:
    """Run the pure part of a step; ``sampled`` has a token for more rows than there can be."""
    selected = select(score(trees, calibration), trees, capacity)
    roots = torch.zeros_like(sampled[: trees.num_requests])
    layout = lay_out(trees, selected, roots, max_depth=8)
    layout.positions(roots)
    return accept(layout, sampled[: layout.num_verify])


def on_device(trees: CandidateTrees, device: str) -> CandidateTrees:
    tensors = {
        field.name: getattr(trees, field.name).to(device)
        for field in dataclasses.fields(trees)
        if field.name != "num_candidates"
    }
    return dataclasses.replace(trees, **tensors)


def test_a_step_never_asks_for_a_value() -> None:
    for seed in range(100):
        trees = builders.random_trees(seed)
        calibration = Calibration.identity(builders.NUM_SOURCES, 4)
        sampled = torch.zeros(64, dtype=torch.int64)

        with no_sync():
            step(trees, calibration, seed % 30, sampled)


def test_building_chains_never_asks_for_a_value() -> None:
    with no_sync():
        CandidateTrees.chains(torch.zeros(3, 4), torch.zeros(3, 4), lens=[4, 0, 2])


def test_a_step_runs_on_shapes_alone() -> None:
    # Tensors of the meta device have no values: whoever needs one fails.
    for seed in range(100):
        trees = on_device(builders.random_trees(seed), "meta")
        calibration = Calibration.identity(builders.NUM_SOURCES, 4, "meta")
        sampled = torch.zeros(64, dtype=torch.int64, device="meta")

        acceptance = step(trees, calibration, seed % 30, sampled)

        assert acceptance.token_ids.shape == (trees.num_requests, 9)


@pytest.mark.gpu
def test_a_step_never_waits_for_the_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    for seed in range(20):
        trees = builders.random_trees(seed)
        on_gpu = on_device(trees, "cuda")
        calibration = Calibration.identity(builders.NUM_SOURCES, 4, "cuda")
        sampled = torch.zeros(64, dtype=torch.int64, device="cuda")
        torch.cuda.set_sync_debug_mode("error")
        try:
            acceptance = step(on_gpu, calibration, seed % 30, sampled)
        finally:
            torch.cuda.set_sync_debug_mode("default")

        expected = step(
            trees, Calibration.identity(builders.NUM_SOURCES, 4), seed % 30, sampled.cpu()
        )
        assert acceptance.token_ids.tolist() == expected.token_ids.tolist()


@pytest.mark.parametrize(
    "read",
    [
        lambda values: values.sum().item(),
        lambda values: values.tolist(),
        lambda values: bool(values.any()),
        lambda values: values[values > 0],
        lambda values: values.nonzero(),
        lambda values: torch.where(values > 0),
        lambda values: torch.bincount(values),
        lambda values: values.cpu(),
    ],
)
def test_the_guard_notices_every_way_to_wait(read: Any) -> None:
    values = torch.arange(4)

    with pytest.raises(AssertionError, match="waits for the device"), no_sync():
        read(values)
