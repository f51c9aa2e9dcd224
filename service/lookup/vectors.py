"""Rows of a table copied or added up as float32, whatever they are stored as, in vector instructions.

numba has no arithmetic on float16 and bfloat16, and a loop of its own keeps a sum in memory; so these are written in
LLVM's words, which know a half (one instruction widens eight) and keep the sum of 64 columns in registers. Columns that
are left over go 32, then 8, then one at a time. Every column is added in the order of the ids, so the width does not
show in the answer.

Addresses are int64, and nothing needs to be aligned.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import core, extending, types

# numba's own types say nothing to a type checker.
intrinsic: Any = extending.intrinsic
cgutils: Any = core.cgutils

_FLOAT, _INDEX, _BYTE = ir.FloatType(), ir.IntType(64), ir.IntType(8)
_WIDTHS = (64, 32, 8, 1)
# What stands for a kind of number in a kernel's signature -> how it lies in the table, and its bytes. numba knows no
# type of two bytes that are a half or a bfloat16, so integers of their size stand for them; uint8 for two int4.
_STORED = {
    types.float32: (_FLOAT, 4),
    types.int16: (ir.HalfType(), 2),
    types.uint16: (ir.IntType(16), 2),
    types.int8: (_BYTE, 1),
    types.uint8: (_BYTE, 1),
}
_SCALED = (types.int8, types.uint8)


@intrinsic
def prefetch(typingctx, address, num_bytes):  # type: ignore[no-untyped-def]
    """Asks for the cache lines that bytes lie in, which will be read soon; an address that is none does no harm."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        _ask_for(builder, *args)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def copy_row(typingctx, kind, row_at, scale_at, dim, out_at):  # type: ignore[no-untyped-def]
    """Writes one row as float32.

    Args:
      kind: a number of the type that stands for the table's, whatever its value.
      scale_at: of a float32 that multiplies int8 and int4; not looked at otherwise.
      dim: D.
    """

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        _, row_at, scale_at, dim, out_at = args
        for width in _WIDTHS:
            with _columns(builder, width, dim) as column:
                numbers = _read(builder, kind, row_at, column, width)
                if kind in _SCALED:
                    scale = _load(builder, _FLOAT, scale_at, _INDEX(0), 4)
                    numbers = builder.fmul(numbers, _spread(builder, scale, width))
                _write(builder, numbers, out_at, column)
        return context.get_dummy_value()

    return types.void(kind, *[types.int64] * 4), codegen


@intrinsic
def add_rows(typingctx, kind, table_at, scales_at, ids_at, weights_at, count, dim, out_at, ahead_at, last_at):  # type: ignore[no-untyped-def]
    """Writes the float32 sum of rows, each times its weight; zeros for none.

    Args:
      kind: as in copy_row.
      scales_at: of the table's [V] float32, for int8 and int4; not looked at otherwise.
      ids_at: of [count] int64, each inside the table.
      weights_at: of [count] float32, or 0 for 1 everywhere.
      ahead_at: of ids whose rows are asked for on the way, one for each that is added, none behind last_at; they may be
        outside the table.
    """

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        _, table_at, scales_at, ids_at, weights_at, count, dim, out_at, ahead_at, last_at = args
        if kind == types.uint8:
            row_bytes = builder.lshr(builder.add(dim, _INDEX(1)), _INDEX(1))
        else:
            row_bytes = builder.mul(dim, _INDEX(_STORED[kind][1]))

        def add_up(column: Any, width: int, *, is_weighted: bool) -> None:
            before = builder.block
            head, body, behind = (builder.append_basic_block() for _ in range(3))
            builder.branch(head)
            builder.position_at_end(head)
            i, total = builder.phi(_INDEX), builder.phi(ir.VectorType(_FLOAT, width))
            i.add_incoming(_INDEX(0), before)
            total.add_incoming(ir.Constant(ir.VectorType(_FLOAT, width), [0.0] * width), before)
            builder.cbranch(builder.icmp_signed("<", i, count), body, behind)
            builder.position_at_end(body)
            with builder.if_then(builder.icmp_signed("==", column, _INDEX(0))):
                at = builder.add(ahead_at, builder.mul(i, _INDEX(8)))
                at = builder.select(builder.icmp_signed("<", at, last_at), at, last_at)
                ahead = _load(builder, _INDEX, at, _INDEX(0), 8)
                _ask_for(builder, builder.add(table_at, builder.mul(ahead, row_bytes)), row_bytes)
                if kind in _SCALED:
                    _ask_for(builder, builder.add(scales_at, builder.mul(ahead, _INDEX(4))), _INDEX(4))
            row = _load(builder, _INDEX, ids_at, i, 8)
            row_at = builder.add(table_at, builder.mul(row, row_bytes))
            numbers = _read(builder, kind, row_at, column, width)
            if kind in _SCALED:
                numbers = builder.fmul(numbers, _spread(builder, _load(builder, _FLOAT, scales_at, row, 4), width))
            if is_weighted:
                numbers = builder.fmul(numbers, _spread(builder, _load(builder, _FLOAT, weights_at, i, 4), width))
            total.add_incoming(builder.fadd(total, numbers), builder.block)
            i.add_incoming(builder.add(i, _INDEX(1)), builder.block)
            builder.branch(head)
            builder.position_at_end(behind)
            _write(builder, total, out_at, column)

        for width in _WIDTHS:
            with _columns(builder, width, dim) as column:
                has_weights = builder.icmp_unsigned("!=", weights_at, _INDEX(0))
                with builder.if_else(has_weights) as (then, otherwise):
                    with then:
                        add_up(column, width, is_weighted=True)
                    with otherwise:
                        add_up(column, width, is_weighted=False)
        return context.get_dummy_value()

    return types.void(kind, *[types.int64] * 9), codegen


def _ask_for(builder: Any, address: Any, num_bytes: Any) -> None:
    pointer, number = _BYTE.as_pointer(), ir.IntType(32)
    function_type = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")

    def ask(at: Any) -> None:
        # To read, kept in all caches, data.
        builder.call(function, [builder.inttoptr(at, pointer), number(0), number(3), number(1)])

    # Most rows lie in two lines or three: a loop over all of them would take twice as long.
    last = builder.sub(builder.add(address, num_bytes), _INDEX(1))
    ask(address)
    ask(last)
    between = builder.add(builder.and_(address, _INDEX(-64)), _INDEX(64))
    with cgutils.for_range_slice(builder, between, builder.and_(last, _INDEX(-64)), _INDEX(64), _INDEX) as (line, _):
        ask(line)


@contextmanager
def _columns(builder: Any, width: int, dim: Any) -> Iterator[Any]:
    # A loop over columns, so many at a time: those that a wider loop before it has left.
    left = dim if width == _WIDTHS[0] else builder.urem(dim, _INDEX(_WIDTHS[_WIDTHS.index(width) - 1]))
    count = builder.sub(left, builder.urem(left, _INDEX(width)))
    start = builder.sub(dim, left)
    with cgutils.for_range_slice(builder, start, builder.add(start, count), _INDEX(width), _INDEX) as (column, _):
        yield column


def _load(builder: Any, kind: Any, base: Any, index: Any, size: int) -> Any:
    at = builder.add(base, builder.mul(index, _INDEX(size)))
    loaded = builder.load(builder.inttoptr(at, kind.as_pointer()))
    loaded.align = 1
    return loaded


def _read(builder: Any, kind: Any, row_at: Any, column: Any, width: int) -> Any:
    if kind == types.uint8:
        return builder.sitofp(_halves_of_bytes(builder, row_at, column, width), ir.VectorType(_FLOAT, width))
    element, size = _STORED[kind]
    at = builder.add(row_at, builder.mul(column, _INDEX(size)))
    numbers = builder.load(builder.inttoptr(at, ir.VectorType(element, width).as_pointer()))
    numbers.align = 1
    floats = ir.VectorType(_FLOAT, width)
    if kind == types.float32:
        return numbers
    if kind == types.int16:
        return builder.fpext(numbers, floats)
    if kind == types.int8:
        return builder.sitofp(numbers, floats)
    # A bfloat16 is the upper half of a float32.
    words = ir.VectorType(ir.IntType(32), width)
    return builder.bitcast(builder.shl(builder.zext(numbers, words), ir.Constant(words, [16] * width)), floats)


def _halves_of_bytes(builder: Any, row_at: Any, column: Any, width: int) -> Any:
    # Signed numbers of four bits, the one of the even column in a byte's low half. Columns of more than one at a time
    # begin at a byte, for _columns begins at multiples of 8.
    num_bytes = max(1, width // 2)
    octets = ir.VectorType(_BYTE, num_bytes)
    at = builder.add(row_at, builder.lshr(column, _INDEX(1)))
    pairs = builder.load(builder.inttoptr(at, octets.as_pointer()))
    pairs.align = 1
    four = ir.Constant(octets, [4] * num_bytes)
    # Shifted to the left and back, the low half has its sign.
    low = builder.ashr(builder.shl(pairs, four), four)
    high = builder.ashr(pairs, four)
    if width == 1:
        return builder.select(builder.trunc(column, ir.IntType(1)), high, low)
    order = [half + i for i in range(num_bytes) for half in (0, num_bytes)]
    return builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(ir.IntType(32), width), order))


def _spread(builder: Any, number: Any, width: int) -> Any:
    floats = ir.VectorType(_FLOAT, width)
    nothing = ir.Constant(floats, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.IntType(32)(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width))


def _write(builder: Any, numbers: Any, out_at: Any, column: Any) -> None:
    at = builder.add(out_at, builder.mul(column, _INDEX(4)))
    builder.store(numbers, builder.inttoptr(at, numbers.type.as_pointer())).align = 1
