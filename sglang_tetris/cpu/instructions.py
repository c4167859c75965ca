"""Instructions that Numba does not offer: AMX tiles, bfloat16 rounding, prefetching, addresses.

Each is one LLVM instruction or intrinsic, usable in compiled code only. A tile holds up to 16 rows
of 64 bytes; there are eight, and ``configure`` says how many rows of each are in use. They belong to
the thread, so whoever configured them releases them before other code may run on it.
(Intel, Architecture Instruction Set Extensions Programming Reference, chapter 3.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

NUM_TILES = 8
TILE_ROWS = 16
TILE_BYTES = 64  # of a row
CONFIGURATION_BYTES = 64

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_POINTER = _I8.as_pointer()


def configuration(
    rows: tuple[int, ...], row_bytes: tuple[int, ...] = (TILE_BYTES,) * NUM_TILES
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return what ``configure`` reads: the rows in use of each tile, and how wide they are."""
    assert len(rows) == len(row_bytes) == NUM_TILES
    assert all(1 <= num <= TILE_ROWS for num in rows)
    assert all(4 <= num <= TILE_BYTES and num % 4 == 0 for num in row_bytes)
    config = np.zeros(CONFIGURATION_BYTES, np.uint8)
    config[0] = 1  # the only palette
    config[16 : 16 + 2 * NUM_TILES].view(np.uint16)[:] = row_bytes
    config[48 : 48 + NUM_TILES] = rows
    return config


def _call(builder: Any, name: str, arguments: list[Any]) -> None:
    kinds = [argument.type for argument in arguments]
    function = builder.module.globals.get(name) or ir.Function(
        builder.module, ir.FunctionType(ir.VoidType(), kinds), name
    )
    builder.call(function, arguments)


def _without_result(
    name: str,
    num_addresses: int,
    immediates: tuple[tuple[int, int], ...] = (),
    stride: bool = False,
) -> Any:
    """Return an intrinsic that calls ``name`` with constants, addresses and then a stride.

    ``immediates`` are (width in bits, value); addresses and stride are the arguments.
    """
    signature = types.void(*[types.int64] * (num_addresses + stride))

    def codegen(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        pointers = [builder.inttoptr(item, _POINTER) for item in arguments[:num_addresses]]
        constants = [ir.Constant(ir.IntType(bits), value) for bits, value in immediates]
        if name.startswith("llvm.prefetch"):  # the one with its constants behind
            _call(builder, name, [*pointers, *constants])
        else:
            _call(builder, name, [*constants, *pointers, *arguments[num_addresses:]])
        return context.get_dummy_value()

    # Numba reads the number of arguments off the function.
    typers: tuple[Callable[..., Any], ...] = (
        lambda _typing: (signature, codegen),
        lambda _typing, first: (signature, codegen),
        lambda _typing, first, second: (signature, codegen),
    )
    return intrinsic(typers[num_addresses + stride])


configure = _without_result("llvm.x86.ldtilecfg", 1)
release = _without_result("llvm.x86.tilerelease", 0)
# The tile's number is part of the instruction, so there is one intrinsic per tile.
clear = tuple(_without_result("llvm.x86.tilezero", 0, ((8, n),)) for n in range(NUM_TILES))
load = tuple(
    _without_result("llvm.x86.tileloadd64", 1, ((8, n),), stride=True) for n in range(NUM_TILES)
)
store = tuple(
    _without_result("llvm.x86.tilestored64", 1, ((8, n),), stride=True) for n in range(NUM_TILES)
)
prefetch = _without_result("llvm.prefetch.p0", 1, ((32, 0), (32, 3), (32, 1)))  # read, keep, data


def multiply_add(into: int, left: int, right: int) -> Any:
    """Return the intrinsic ``into += left @ right`` of three tiles: float32 sums of products of
    bfloat16 pairs, ``right`` holding two rows of the factor side by side in each of its rows.
    """
    return _without_result("llvm.x86.tdpbf16ps", 0, ((8, into), (8, left), (8, right)))


@intrinsic
def to_bfloat16(_typing: Any, number: Any) -> Any:
    """Return the bits of the bfloat16 nearest to a float32, ties to even, NaN for NaN."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        bits = builder.bitcast(arguments[0], _I32)
        upper = builder.lshr(bits, _I32(16))
        rounded = builder.add(bits, builder.add(_I32(0x7FFF), builder.and_(upper, _I32(1))))
        is_nan = builder.fcmp_unordered("uno", arguments[0], arguments[0])
        chosen = builder.select(is_nan, _I32(0x7FC00000), rounded)
        return builder.trunc(builder.lshr(chosen, _I32(16)), _I16)

    return types.uint16(types.float32), codegen


@intrinsic
def from_bits(_typing: Any, bits: Any) -> Any:
    """Return the float32 with these 32 bits."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.uint32), codegen


@intrinsic
def to_bits(_typing: Any, number: Any) -> Any:
    """Return the 32 bits of a float32."""

    def codegen(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _I32)

    return types.uint32(types.float32), codegen


@intrinsic
def interleave(_typing: Any, even: Any, odd: Any, out: Any) -> Any:
    """Write 32 pairs of 16 bits: those at the address ``even``, each followed by one at ``odd``."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        vector = ir.VectorType(_I16, 32)
        even, odd, out = (builder.inttoptr(item, vector.as_pointer()) for item in arguments)
        left, right = builder.load(even, align=2), builder.load(odd, align=2)
        for half in range(2):
            order = [place // 2 + 16 * half + 32 * (place % 2) for place in range(32)]
            mask = ir.Constant(ir.VectorType(_I32, 32), order)
            pairs = builder.shuffle_vector(left, right, mask)
            builder.store(pairs, builder.gep(out, [_I32(half)]), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def copy_line(_typing: Any, source: Any, out: Any) -> Any:
    """Copy 64 bytes from one address to another."""

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        line = ir.VectorType(_I64, 8).as_pointer()
        source, out = (builder.inttoptr(item, line) for item in arguments)
        builder.store(builder.load(source, align=2), out, align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def pointer_to(element: Any) -> Any:
    """Return the intrinsic that makes an address one of ``element``, for ``numba.carray``."""
    pointer = types.CPointer(element)

    def codegen(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    def typer(_typing: Any, address: Any) -> Any:
        return pointer(types.int64), codegen

    return intrinsic(typer)


bfloat16_at = pointer_to(types.uint16)
float32_at = pointer_to(types.float32)
