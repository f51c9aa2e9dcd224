"""Loads one server with one kind of request: connects, warms up, measures, and waits for requests in flight."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest.bench.generator import http1_loop, http2_loop
from loadtest.bench.generator.latencies import NUM_BUCKETS, quantile_ms

_DATA_BYTES = 1 << 18
_DRAIN_S = 30.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_LARGEST_WINDOW = 2**31 - 1


class LoadError(Exception):
    """Raised if the server closes a connection, refuses a call, or sends an answer of the wrong size."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The requests of a load; the generator sends them again and again, one variant after the other.

    Args:
      bodies: gRPC messages or HTTP bodies, one per variant.
      expected: number of bytes in the answer to each variant, of the message or body.
      path: path of the gRPC method or HTTP route.
      headers: HTTP headers of each body in addition to host and content-length.
      fields: over gRPC, encoded header fields in addition to gRPC's own; requests use them in turn.
    """

    is_grpc: bool
    path: str
    bodies: Sequence[bytes]
    expected: Sequence[int]
    headers: Sequence[Sequence[tuple[str, str]]]
    fields: Sequence[bytes] = (b"",)


@dataclass(frozen=True, slots=True)
class Shot:
    """The figures of one measured round. busy: share of a core that the generator used; 1 means it was the limit."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    requests: int
    server_cpu_us: float
    busy: float


def drive(
    ask: Ask,
    port: int,
    *,
    connections: int = 32,
    streams: int = 1,
    seconds: float,
    warm_s: float,
    server_cpu_s: Callable[[], float],
) -> Shot:
    """Measures one round of a load; raises LoadError at the first answer of a wrong size."""
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    try:
        for sock in sockets:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        run = (_http2 if ask.is_grpc else _http1)(ask, sockets, streams)
        counts = np.zeros(http2_loop.NUM_COUNTS, np.int64)
        histogram = np.zeros(NUM_BUCKETS, np.int64)
        run(counts, histogram, round(warm_s * 1e9), True)
        counts[http2_loop.DONE] = 0
        histogram[:] = 0
        used_s, own_s, started_s = server_cpu_s(), time.thread_time(), time.perf_counter()
        run(counts, histogram, round(seconds * 1e9), True)
        wall_s, own_s, used_s = time.perf_counter() - started_s, time.thread_time() - own_s, server_cpu_s() - used_s
        done, measured = int(counts[http2_loop.DONE]), histogram.copy()
        run(counts, histogram, round(_DRAIN_S * 1e9), False)
        if counts[http2_loop.BROKEN] or counts[http2_loop.WRONG] or counts[http2_loop.IN_FLIGHT]:
            raise LoadError(
                f"{ask.path}: {counts[http2_loop.WRONG]} answers of another size, {counts[http2_loop.BROKEN]} "
                f"connections closed or calls reset, {counts[http2_loop.IN_FLIGHT]} not answered"
            )
    finally:
        for sock in sockets:
            sock.close()
    p50_ms, p99_ms = quantile_ms(measured, 0.5), quantile_ms(measured, 0.99)
    return Shot(done / wall_s, p50_ms, p99_ms, done, used_s / max(done, 1) * 1e6, own_s / wall_s)


def _http2(ask: Ask, sockets: list[socket.socket], streams: int) -> Callable[..., None]:
    # In gRPC, a prefix of 5 bytes precedes each message: a flag (0: not compressed) and the message's length.
    bodies, sizes = _padded([b"\0" + struct.pack(">I", len(body)) + body for body in ask.bodies])
    heads, head_sizes = _padded([_header_block(ask.path) + more for more in ask.fields])
    opening = _PREFACE + _frame(http2_loop.SETTINGS, struct.pack(">HI", 4, _LARGEST_WINDOW))
    opening += _frame(http2_loop.WINDOW_UPDATE, struct.pack(">I", _LARGEST_WINDOW - 65535))
    rows = np.zeros((len(sockets), http2_loop.CONNECTION_COLUMNS), np.int64)
    for row, sock in zip(rows, sockets, strict=True):
        sock.sendall(opening)
        row[http2_loop.FD] = sock.fileno()
        row[http2_loop.WINDOW] = row[http2_loop.PEER_WINDOW] = 65535
        row[http2_loop.PEER_FRAME] = 16384
        row[http2_loop.NEXT_ID] = 1
    room = 2 * streams * (bodies.shape[1] * 9 // 8 + heads.shape[1] + 64) + (1 << 16)
    fixed = (
        rows,
        np.zeros((len(sockets), streams, http2_loop.STREAM_COLUMNS), np.int64),
        np.zeros((len(sockets), room), np.uint8),
        np.zeros((len(sockets), http2_loop.CARRY_BYTES), np.uint8),
        _waiting(sockets),
        np.zeros(_DATA_BYTES, np.uint8),
        heads,
        head_sizes,
        bodies,
        sizes,
        np.array(ask.expected, np.int64) + 5,
    )
    return lambda *more: http2_loop.run(*fixed, *more)


def _http1(ask: Ask, sockets: list[socket.socket], streams: int) -> Callable[..., None]:
    if streams != 1:
        raise ValueError("HTTP/1.1 allows one request at a time on a connection")
    whole = []
    for body, headers in zip(ask.bodies, ask.headers, strict=True):
        lines = [f"POST {ask.path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(body)}"]
        whole.append("\r\n".join([*lines, *(f"{k}: {v}" for k, v in headers), "", ""]).encode() + body)
    requests, sizes = _padded(whole)
    rows = np.zeros((len(sockets), http1_loop.CONNECTION_COLUMNS), np.int64)
    rows[:, http1_loop.FD] = [sock.fileno() for sock in sockets]
    fixed = (
        rows,
        np.zeros((len(sockets), http1_loop.HEAD_BYTES), np.uint8),
        _waiting(sockets),
        np.zeros(_DATA_BYTES, np.uint8),
        requests,
        sizes,
        np.array(ask.expected, np.int64),
    )
    return lambda *more: http1_loop.run(*fixed, *more)


def _padded(pieces: Sequence[bytes]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    rows = np.zeros((len(pieces), int(sizes.max())), np.uint8)
    for row, piece in zip(rows, pieces, strict=True):
        row[: len(piece)] = np.frombuffer(piece, np.uint8)
    return rows, sizes


def _waiting(sockets: list[socket.socket]) -> np.ndarray[Any, Any]:
    waiting = np.zeros((len(sockets), 2), np.int32)
    waiting[:, 0] = [sock.fileno() for sock in sockets]
    return waiting


def _frame(kind: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + bytes(4) + payload


def _header_block(path: str) -> bytes:
    # The fields are literals without indexing, which need no HPACK table. Byte 0x83 means ":method: POST", 0x86
    # ":scheme: http" (RFC 7541, appendix A).
    fields = {
        ":path": path,
        ":authority": "127.0.0.1",
        "te": "trailers",
        "content-type": "application/grpc",
        "user-agent": "bench",
    }
    block = b"\x83\x86"
    for name, value in fields.items():
        block += b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
    return block
