"""Reads the lines of a vocabulary file as TensorFlow and the server's index read them."""

from __future__ import annotations

from pathlib import Path


def vocabulary_lines(path: Path) -> tuple[bytes, ...]:
    """Reads the keys of a vocabulary file; raises OSError."""
    return lines_of(path.read_bytes())


def lines_of(content: bytes) -> tuple[bytes, ...]:
    """Returns the lines of a vocabulary file; only a line feed, or CR LF, ends a line, and the last one may lack it.

    Source: InputBuffer::ReadLine of tsl/lib/io/inputbuffer.cc (TensorFlow 2.21).

    >>> lines_of(b"new\\x0byork\\r\\na\\rb\\n")
    (b'new\\x0byork', b'a\\rb')
    """
    if not content:
        return ()
    return tuple(line.removesuffix(b"\r") for line in content.removesuffix(b"\n").split(b"\n"))
