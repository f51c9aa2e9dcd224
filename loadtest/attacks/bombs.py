"""Makes compressed bodies that inflate to far more than their size."""

from __future__ import annotations

import functools
import zlib


def gzipped_zeros(mebibytes: int) -> bytes:
    """Returns zeros in gzip's format: one compressed block, repeated, because compressing so many zeros takes long."""
    zeros = bytes(1 << 20)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)
    crc = functools.reduce(lambda crc, _: zlib.crc32(zeros, crc), range(mebibytes), 0)
    head, end = b"\x1f\x8b\x08" + bytes(6) + b"\xff", b"\x03\x00"
    return head + block * mebibytes + end + crc.to_bytes(4, "little") + (mebibytes << 20).to_bytes(4, "little")
