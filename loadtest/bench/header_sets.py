"""Encodes the header fields that gRPC calls have in production beside gRPC's own.

Trace id, request id and timeout differ between requests, so each set has many header blocks, which requests use in
turn. The blocks are independent of each other: their fields are literals with literal names (RFC 7541, section 6.2).
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

# Number of header blocks in a set: a multiple of each workload's number of variants, and so many that a cache of whole
# blocks does not help.
_NUM_BLOCKS = 4096
_NOT_INDEXED, _NEVER_INDEXED, _INDEXED = 0x00, 0x10, 0x40
_HUFFMAN = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)

Field = tuple[str, str]
# Type of a function that makes the header fields of one request from a random generator and the request's body.
Fields = Callable[[random.Random, bytes], list[Field]]


def _authorization(rng: random.Random, body: bytes) -> list[Field]:
    return [("authorization", "Bearer 0123456789abcdef0123456789abcdef01234567")]


def _timeout(rng: random.Random, body: bytes) -> list[Field]:
    return [("grpc-timeout", f"{rng.randint(4_000_000, 5_000_000)}u")]


def _request_id(rng: random.Random, body: bytes) -> list[Field]:
    return [("x-request-id", str(uuid.UUID(int=rng.getrandbits(128))))]


def _trace(rng: random.Random, body: bytes) -> list[Field]:
    return [("traceparent", f"00-{rng.getrandbits(128):032x}-{rng.getrandbits(64):016x}-00")]


def _content_length(rng: random.Random, body: bytes) -> list[Field]:
    return [("content-length", str(5 + len(body)))]


def _all(rng: random.Random, body: bytes) -> list[Field]:
    return [field for fields in (_timeout, _request_id, _trace) for field in fields(rng, body)]


def _block(fields: Sequence[Field], kind: int, is_huffman: bool) -> bytes:
    block = b""
    for name, value in fields:
        block += bytes([kind])
        for text in (name.encode(), value.encode()):
            coded = _HUFFMAN.encode(text) if is_huffman else text
            # This code writes the length of an HPACK string in one byte, which has room for lengths below 127.
            assert len(coded) < 127
            block += bytes([len(coded) | (0x80 if is_huffman else 0)]) + coded
    return block


def _blocks(fields: Fields, kind: int, is_huffman: bool, bodies: Sequence[bytes]) -> list[bytes]:
    rng = random.Random(1)
    return [_block(fields(rng, bodies[i % len(bodies)]), kind, is_huffman) for i in range(_NUM_BLOCKS)]


# Maps the name of a header set to a function that makes encoded header blocks for the bodies of a workload's requests.
# Request i sends block i, modulo the number of blocks.
HEADER_SETS: Mapping[str, Callable[[Sequence[bytes]], list[bytes]]] = {
    "plain": lambda bodies: [b""],
    "authorization": partial(_blocks, _authorization, _INDEXED, False),
    "timeout": partial(_blocks, _timeout, _INDEXED, False),
    "request id": partial(_blocks, _request_id, _INDEXED, False),
    "trace": partial(_blocks, _trace, _INDEXED, False),
    "all three": partial(_blocks, _all, _INDEXED, False),
    "content-length": partial(_blocks, _content_length, _NOT_INDEXED, False),
    "all never indexed": partial(_blocks, _all, _NEVER_INDEXED, False),
    "all Huffman": partial(_blocks, _all, _INDEXED, True),
}
