"""Writes delta files by the description of their format, without code of service.deltas."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path

from tests.toy_model import MANIFEST, masked_crc32c


def crc32c(data: bytes) -> int:
    """Computes the CRC32C of bytes, without the mask that TensorFlow adds.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    turned = (masked_crc32c(data) - 0xA282EAD8) & 0xFFFFFFFF
    return (turned >> 17 | turned << 15) & 0xFFFFFFFF


def delta_bytes(
    version: Path,
    sequence: int,
    table: str,
    ids: Sequence[int],
    rows: Sequence[Sequence[float]],
    *,
    flags: int = 0,
    fingerprint: bytes | None = None,
) -> bytes:
    """Encodes new values for rows of a table as a delta file for a version folder."""
    name = table.encode()
    fingerprint = fingerprint or hashlib.sha256((version / MANIFEST).read_bytes()).digest()
    data = b"EMBDELTA" + struct.pack("<IIQQII", 1, flags, sequence, 0, 1, len(rows[0]))
    data += struct.pack("<Q", len(rows)) + fingerprint + struct.pack("<II", len(name), 0)
    data += name + bytes(-len(name) % 8) + struct.pack(f"<{len(ids)}q", *ids)
    data += b"".join(struct.pack(f"<{len(row)}f", *row) for row in rows)
    return data + struct.pack("<I", crc32c(data))


def drop(version: Path, sequence: int, data: bytes) -> Path:
    """Writes a delta file into a version's folder under another name and renames it, as every writer of deltas must."""
    folder = version / "deltas"
    folder.mkdir(exist_ok=True)
    path = folder / f"{sequence:016d}.delta"
    path.with_suffix(".tmp").write_bytes(data)
    path.with_suffix(".tmp").rename(path)
    return path
