"""Header blocks to names and values, with the table that a connection's client fills.

A call's headers hardly change from one call to the next, and a block that leaves the table alone always says the same
until another changes it: so blocks can be remembered, and most are never decoded. For the rest, the general decoder of
the hpack package takes three times as long as this one; its tables of Huffman codes and fixed headers are used.

Source: RFC 7541.
"""

from __future__ import annotations

from collections import deque

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from service.transports.grpc.h2.frames import COMPRESSION_ERROR, ConnectionFault

Field = tuple[bytes, bytes]

_STATIC: tuple[Field, ...] = tuple(HeaderTable.STATIC_TABLE)
_NUM_STATIC = len(_STATIC)
# What an entry of the table is counted beside its name and value.
_ENTRY_BYTES = 32
# No number in a block needs more; what follows could only be zeros.
_MAX_NUMBER = 1 << 24


class HeadersTooLarge(Exception):
    """The decoded headers are over the limit; the table is as the client thinks it is."""


class HeaderDecoder:
    """Decodes the blocks of one connection, in order. Not thread-safe.

    Args:
      max_bytes: of one block's headers, counted as HTTP/2 counts them.
      table_bytes: what the client may let its table grow to.

    changes: counts how often the table changed; a block decoded between two equal counts may be remembered until the
      next change.
    """

    __slots__ = ("_max_bytes", "_most_bytes", "_table_bytes", "_held_bytes", "_table", "changes")

    def __init__(self, max_bytes: int, table_bytes: int = 4096) -> None:
        self._max_bytes = max_bytes
        self._most_bytes = self._table_bytes = table_bytes
        self._held_bytes = 0
        self._table: deque[Field] = deque()
        self.changes = 0

    def decode(self, block: bytes) -> list[Field]:
        """Returns the headers of a block.

        Raises:
          ConnectionFault: it is no header block.
          HeadersTooLarge: they are over the limit; the connection goes on.
        """
        try:
            return self._decoded(block)
        except (IndexError, HPACKDecodingError) as error:
            raise ConnectionFault(COMPRESSION_ERROR, "a header block can not be decoded") from error

    def _decoded(self, block: bytes) -> list[Field]:
        fields: list[Field] = []
        at, end, left = 0, len(block), self._max_bytes
        while at < end:
            byte = block[at]
            if byte & 0x80:
                index, at = _number(block, at, 0x7F)
                field = self._field(index)
            elif byte & 0x60 == 0x20:
                if fields:
                    raise ConnectionFault(COMPRESSION_ERROR, "the header table is resized between headers")
                at = self._resized(block, at)
                continue
            else:
                index, at = _number(block, at, 0x3F if byte & 0x40 else 0x0F)
                if index:
                    name = self._field(index)[0]
                else:
                    name, at = _text(block, at)
                value, at = _text(block, at)
                field = (name, value)
                if byte & 0x40:
                    self._add(field)
            left -= len(field[0]) + len(field[1]) + _ENTRY_BYTES
            # The rest is read for what it does to the table.
            if left >= 0:
                fields.append(field)
        if left < 0:
            raise HeadersTooLarge
        return fields

    def _field(self, index: int) -> Field:
        if index <= _NUM_STATIC:
            if not index:
                raise IndexError("0 stands for no header")
            return _STATIC[index - 1]
        return self._table[index - _NUM_STATIC - 1]

    def _add(self, field: Field) -> None:
        self.changes += 1
        self._table.appendleft(field)
        self._held_bytes += len(field[0]) + len(field[1]) + _ENTRY_BYTES
        self._evict()

    def _resized(self, block: bytes, at: int) -> int:
        size, at = _number(block, at, 0x1F)
        if size > self._most_bytes:
            raise ConnectionFault(COMPRESSION_ERROR, "the header table is resized beyond what was allowed")
        self.changes += 1
        self._table_bytes = size
        self._evict()
        return at

    def _evict(self) -> None:
        while self._held_bytes > self._table_bytes:
            name, value = self._table.pop()
            self._held_bytes -= len(name) + len(value) + _ENTRY_BYTES


def _number(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Returns the number whose first bits are those of mask at a place, and the place behind it."""
    number = block[at] & mask
    at += 1
    if number < mask:
        return number, at
    shift = 0
    while True:
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
        if number > _MAX_NUMBER or shift > 28:
            raise ConnectionFault(COMPRESSION_ERROR, "a number in a header block is too large")


def _text(block: bytes, at: int) -> tuple[bytes, int]:
    """Returns the string at a place, and the place behind it."""
    is_huffman = block[at] & 0x80
    length, at = _number(block, at, 0x7F)
    end = at + length
    if end > len(block):
        raise IndexError("a string ends behind its block")
    text = block[at:end]
    return (decode_huffman(text) if is_huffman else text), end
