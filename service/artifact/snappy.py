"""Decompresses raw snappy data: some builds of TensorFlow compress a checkpoint's index by snappy.

>>> decompress(b"\\x06\\x04ab\\x01\\x02")
b'ababab'

Source: google/snappy 59aeffa, format_description.txt.
"""

from __future__ import annotations

# Upper limit of decompressed bytes per compressed byte: the densest snappy element is 3 bytes that copy 64 bytes.
_MOST_PER_BYTE = 22
_OFFSET_BYTES = {1: 1, 2: 2, 3: 4}


def decompress(data: bytes) -> bytes:
    """Decompresses raw snappy data; returns the bytes.

    Raises:
      ValueError: the data is cut off, copies from before its start, or does not yield the length in its header.
    """
    length, position = _length(data)
    if length > _MOST_PER_BYTE * len(data):
        raise ValueError(f"snappy: {len(data)} bytes promise {length}")
    out = bytearray()
    while position < len(data):
        tag = data[position]
        position += 1
        kind = tag & 3
        if kind == 0:
            size, position = _literal_size(data, tag >> 2, position)
            if size > len(data) - position:
                raise ValueError("snappy: a literal is cut off")
            out += data[position : position + size]
            position += size
        else:
            width = _OFFSET_BYTES[kind]
            if width > len(data) - position:
                raise ValueError("snappy: an offset is cut off")
            offset = int.from_bytes(data[position : position + width], "little")
            position += width
            size = (tag >> 2) + 1
            if kind == 1:
                size = (tag >> 2 & 7) + 4
                offset |= tag >> 5 << 8
            _copy(out, offset, size)
        if len(out) > length:
            break
    if len(out) != length:
        raise ValueError(f"snappy: {len(out)} bytes or more instead of {length}")
    return bytes(out)


def _length(data: bytes) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(data[:5]):
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value, i + 1
    raise ValueError("snappy: the length is cut off or too large")


def _literal_size(data: bytes, code: int, position: int) -> tuple[int, int]:
    # Snappy keeps the size of a literal of up to 60 bytes in the tag byte; for longer literals, the codes 60 to 63 say
    # that the size is in the next one to four bytes.
    if code < 60:
        return code + 1, position
    width = code - 59
    if width > len(data) - position:
        raise ValueError("snappy: a literal is cut off")
    return int.from_bytes(data[position : position + width], "little") + 1, position + width


def _copy(out: bytearray, offset: int, size: int) -> None:
    if not 0 < offset <= len(out):
        raise ValueError(f"snappy: a copy from {offset} bytes before, of {len(out)}")
    # A snappy copy may be longer than its offset: then it reads bytes that it has just written, and the bytes from
    # `start` repeat.
    start = len(out) - offset
    piece = out[start : start + size]
    out += (piece * (size // len(piece) + 1))[:size]
