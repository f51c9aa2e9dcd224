"""Length-prefixed messages in a stream of bytes: put together, taken apart, compressed.

Source: gRPC over HTTP2 (PROTOCOL-HTTP2.md), Length-Prefixed-Message; gRPC compression.
"""

from __future__ import annotations

import zlib

from service.core.errors import MalformedPayload, PayloadTooLarge, Unimplemented

# In front of each message: whether it is compressed, and its length.
PREFIX_BYTES = 5
# A message of more bytes is worth a thread by its size alone.
INLINE_BYTES = 256 << 10
_GZIP, _ZLIB = 31, 15
_WINDOW_BITS = {"gzip": _GZIP, "deflate": _ZLIB}


class MessageReader:
    """Cuts the bytes of one stream into messages. Not thread-safe.

    Args:
      encoding: what the stream's compressed messages are compressed by.
      max_bytes: largest message, also when decompressed.
    """

    __slots__ = ("_encoding", "_max_bytes", "_chunks", "_held", "_needed")

    def __init__(self, encoding: str, max_bytes: int) -> None:
        self._encoding = encoding
        self._max_bytes = max_bytes
        self._chunks: list[bytes] = []
        self._held = 0
        self._needed = PREFIX_BYTES

    @property
    def is_between_messages(self) -> bool:
        """Whether the stream may end here."""
        return not self._held

    def feed(self, data: bytes) -> list[bytes]:
        """Takes what arrived; returns the messages that are now whole.

        Raises:
          PayloadTooLarge: a message is larger than the limit; told by its prefix.
          MalformedPayload: a prefix or a compressed message that is none.
          Unimplemented: an unknown compression.
        """
        if not self._chunks and len(data) >= PREFIX_BYTES:
            # Nearly always one frame holds one message.
            needed = self._length(data)
            if len(data) == needed:
                return [self._message(data[0], data[PREFIX_BYTES:])]
        messages = []
        self._chunks.append(data)
        self._held += len(data)
        while self._held >= self._needed:
            if self._needed == PREFIX_BYTES:
                self._join(PREFIX_BYTES)
                self._needed = self._length(self._chunks[0])
                if self._held < self._needed:
                    break
            self._join(self._needed)
            whole = self._chunks[0]
            rest = self._held - self._needed
            message = memoryview(whole)[PREFIX_BYTES : self._needed]
            messages.append(self._message(whole[0], bytes(message)))
            self._chunks = [whole[self._needed :]] if rest else []
            self._held, self._needed = rest, PREFIX_BYTES
        return messages

    def _join(self, size: int) -> None:
        """Makes the first chunk hold size bytes at least."""
        if len(self._chunks[0]) < size:
            self._chunks = [b"".join(self._chunks)]

    def _length(self, data: bytes) -> int:
        length = int.from_bytes(data[1:PREFIX_BYTES], "big")
        if length > self._max_bytes:
            raise _too_large(length, self._max_bytes)
        if data[0] > 1:
            raise MalformedPayload(f"The message's first byte is {data[0]}, expected 0 or 1.")
        return PREFIX_BYTES + length

    def _message(self, flag: int, data: bytes) -> bytes:
        if not flag or self._encoding == "identity":
            return data
        bits = _WINDOW_BITS.get(self._encoding)
        if bits is None:
            raise Unimplemented(f"Message encoding {ascii(self._encoding)} is not supported")
        return _decompressed(data, bits, self._max_bytes)


def _decompressed(data: bytes, window_bits: int, max_bytes: int) -> bytes:
    stream = zlib.decompressobj(window_bits)
    try:
        message = stream.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise MalformedPayload("The message can not be decompressed.") from error
    if len(message) > max_bytes:
        raise _too_large(len(message), max_bytes)
    if not stream.eof:
        raise MalformedPayload("The compressed message ends early.")
    return message


def _too_large(size: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"Received message larger than max ({size} vs. {limit})")


def prefix(length: int, *, is_compressed: bool = False) -> bytes:
    """Returns the five bytes before a message.

    >>> prefix(258).hex()
    '0000000102'
    """
    return (b"\1" if is_compressed else b"\0") + length.to_bytes(4, "big")


def gzipped(data: bytes) -> bytes:
    """Returns data compressed as answers are: quickly."""
    return zlib.compress(data, 1, _GZIP)
