"""CRC-32C of bytes at an address, by the processor's own instruction, the GIL released.

Source: RFC 3720 appendix B.4 (CRC-32C); tensorflow/core/lib/hash/crc32c.h (TensorFlow 2.21) for the mask; LLVM's
llvm.x86.sse42.crc32 (SSE 4.2, which every x86-64 processor of the last fifteen years has).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import core, extending, njit, types

# numba's own types say nothing to a type checker.
intrinsic: Any = extending.intrinsic
cgutils: Any = core.cgutils

_MASK_DELTA = 0xA282EAD8
_INT, _WORD = types.int64, types.uint64


@intrinsic
def _add_word(typingctx, crc, address):  # type: ignore[no-untyped-def]
    # The checksum with eight more bytes.
    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        return _instruction(builder, "llvm.x86.sse42.crc32.64.64", 64, args)

    return _WORD(_WORD, _INT), codegen


@intrinsic
def _add_byte(typingctx, crc, address):  # type: ignore[no-untyped-def]
    # The checksum with one more byte.
    def codegen(context, builder, signature, args):  # type: ignore[no-untyped-def]
        crc, address = args
        short = builder.trunc(crc, ir.IntType(32))
        return builder.zext(_instruction(builder, "llvm.x86.sse42.crc32.32.8", 8, (short, address)), ir.IntType(64))

    return _WORD(_WORD, _INT), codegen


def _instruction(builder: Any, name: str, bits: int, args: Any) -> Any:
    crc, address = args
    number = ir.IntType(bits)
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(crc.type, [crc.type, number]), name)
    data = builder.load(builder.inttoptr(address, number.as_pointer()))
    data.align = 1
    return builder.call(function, [crc, data])


@njit(_INT(_INT, _INT, _INT), cache=True, nogil=True)
def crc32c(address, num_bytes, before):  # type: ignore[no-untyped-def]
    """Returns the checksum of bytes as of what lies behind others whose checksum is before (0 for none)."""
    crc = np.uint64(before) ^ np.uint64(0xFFFFFFFF)
    words = num_bytes // 8
    for i in range(words):
        crc = _add_word(crc, address + 8 * i)
    for i in range(8 * words, num_bytes):
        crc = _add_byte(crc, address + i)
    return np.int64(crc ^ np.uint64(0xFFFFFFFF))


def crc32c_of(data: Any, before: int = 0) -> int:
    """Returns the checksum of what lies in a buffer, going on from that of what came before.

    >>> hex(crc32c_of(b"123456789")), hex(crc32c_of(b"6789", crc32c_of(b"12345")))
    ('0xe3069283', '0xe3069283')
    """
    octets = np.frombuffer(data, np.uint8)
    return int(crc32c(octets.ctypes.data, octets.size, before))


def masked_of(data: bytes) -> int:
    """Returns the masked checksum of bytes.

    >>> hex(masked_of(b"123456789"))
    '0xc78ab0e5'
    """
    return masked(crc32c_of(data))


def masked(crc: int) -> int:
    """Returns a checksum as checkpoints and record files keep it.

    >>> hex(masked(0xE3069283))
    '0xc78ab0e5'
    """
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
