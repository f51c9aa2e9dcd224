"""Arrays at addresses, for compiled code: request bytes, mapped tables and an answer that is written once."""

from __future__ import annotations

import ctypes
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.np import arrayobj

# numba's own types say nothing to a type checker.
intrinsic: Any = extending.intrinsic
populate_array: Any = arrayobj.populate_array
ir: Any = ir

FLOATS_2D = types.Array(types.float32, 2, "C", aligned=False)
FLOATS_3D = types.Array(types.float32, 3, "C", aligned=False)
FLOATS = types.Array(types.float32, 1, "C", aligned=False)
INTS = types.Array(types.int64, 1, "C", aligned=False)
INTS_2D = types.Array(types.int64, 2, "C", aligned=False)
SHORT_INTS = types.Array(types.int32, 1, "C", aligned=False)
WORDS = types.Array(types.uint32, 1, "C", aligned=False)
OCTETS = types.Array(types.uint8, 1, "C", aligned=False)

_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.restype, _new_bytes.argtypes = ctypes.py_object, [ctypes.c_char_p, ctypes.c_ssize_t]
# Where bytes lie behind their id; see address_of, which costs more than the addition.
BYTES_AT = bytes.__basicsize__ - 1


# From this size on, zeros cost more than the call that leaves them out.
_LARGE_BYTES = 16 << 10


def unwritten_bytes(size: int) -> bytes:
    """Returns bytes that are to be filled, at address_of them, before anyone else sees them.

    CPython's own way of building bytes in place; an array would have to be copied into bytes at the end.
    """
    if size < _LARGE_BYTES:
        return bytes(size)
    data: bytes = _new_bytes(None, size)
    return data


def entry_point(compiled: Any) -> Any:
    """Returns what numba's dispatcher calls for a function of one signature, all integers.

    The dispatcher looks at every argument first, which takes longer (1 us) than a lookup of a few ids.
    """
    (overload,) = compiled.overloads.values()
    return overload.entry_point


def address_of(data: bytes) -> int:
    """Returns where the bytes lie."""
    return id(data) + BYTES_AT


def _array_at(array_type: Any, itemsize: int) -> Any:
    ndim = array_type.ndim

    def typed(typingctx, address, *sizes):  # type: ignore[no-untyped-def]
        def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
            array = context.make_array(array_type)(context, builder)
            pointer = builder.inttoptr(args[0], array.data.type)
            width = context.get_constant(types.intp, itemsize)
            shape = list(args[1:])
            strides = [width] * ndim
            for axis in range(ndim - 2, -1, -1):
                strides[axis] = builder.mul(strides[axis + 1], shape[axis + 1])
            populate_array(array, data=pointer, shape=shape, strides=strides, itemsize=width, meminfo=None)
            return array._getvalue()

        return array_type(types.int64, *[types.int64] * ndim), codegen

    return typed


@intrinsic
def floats_at(typingctx, address, n):  # type: ignore[no-untyped-def]
    """[n] float32 at an address."""
    return _array_at(FLOATS, 4)(typingctx, address, n)


@intrinsic
def floats_2d_at(typingctx, address, n, dim):  # type: ignore[no-untyped-def]
    """[n, dim] float32 at an address."""
    return _array_at(FLOATS_2D, 4)(typingctx, address, n, dim)


@intrinsic
def floats_3d_at(typingctx, address, n, length, dim):  # type: ignore[no-untyped-def]
    """[n, length, dim] float32 at an address."""
    return _array_at(FLOATS_3D, 4)(typingctx, address, n, length, dim)


@intrinsic
def ints_at(typingctx, address, n):  # type: ignore[no-untyped-def]
    """[n] int64 at an address."""
    return _array_at(INTS, 8)(typingctx, address, n)


@intrinsic
def ints_2d_at(typingctx, address, n, width):  # type: ignore[no-untyped-def]
    """[n, width] int64 at an address."""
    return _array_at(INTS_2D, 8)(typingctx, address, n, width)


@intrinsic
def short_ints_at(typingctx, address, n):  # type: ignore[no-untyped-def]
    """[n] int32 at an address."""
    return _array_at(SHORT_INTS, 4)(typingctx, address, n)


@intrinsic
def octets_at(typingctx, address, n):  # type: ignore[no-untyped-def]
    """[n] uint8 at an address."""
    return _array_at(OCTETS, 1)(typingctx, address, n)


@intrinsic
def first_bit(typingctx, word):  # type: ignore[no-untyped-def]
    """Position of the lowest bit that is set in a uint64 other than 0, as uint64."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


@intrinsic
def bytes_below_128(typingctx, address):  # type: ignore[no-untyped-def]
    """Returns which of the 16 bytes at an address are less than 128, the first in the lowest bit, as uint64."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        octets = ir.VectorType(ir.IntType(8), 16)
        loaded = builder.load(builder.inttoptr(args[0], octets.as_pointer()))
        loaded.align = 1
        are_below = builder.icmp_signed(">=", loaded, ir.Constant(octets, [0] * 16))
        return builder.zext(builder.bitcast(are_below, ir.IntType(16)), ir.IntType(64))

    return types.uint64(types.int64), codegen


@intrinsic
def store_8_bytes(typingctx, address, word):  # type: ignore[no-untyped-def]
    """Stores a uint64 at any address, its lowest byte first."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        builder.store(args[1], builder.inttoptr(args[0], ir.IntType(64).as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint64), codegen


@intrinsic
def store_byte(typingctx, address, byte):  # type: ignore[no-untyped-def]
    """Stores the lowest byte of an int64 at an address."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        octet = ir.IntType(8)
        builder.store(builder.trunc(args[1], octet), builder.inttoptr(args[0], octet.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def float32_of(typingctx, bits):  # type: ignore[no-untyped-def]
    """Returns the float32 whose bits are the lower half of a uint64."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.bitcast(builder.trunc(args[0], ir.IntType(32)), ir.FloatType())

    return types.float32(types.uint64), codegen


@intrinsic
def leading_zeros(typingctx, word):  # type: ignore[no-untyped-def]
    """Returns how many of the upper bits of a uint64 are 0."""

    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), codegen


@intrinsic
def words_at(typingctx, address, n):  # type: ignore[no-untyped-def]
    """[n] uint32 at an address."""
    return _array_at(WORDS, 4)(typingctx, address, n)
