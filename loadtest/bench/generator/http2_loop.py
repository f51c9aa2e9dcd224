"""The inner loop of the HTTP/2 load: sends unary gRPC calls on many streams of each connection.

Flow control works in both directions: requests wait for the server's windows, and the client sends WINDOW_UPDATEs for
the connection. Answer headers are not parsed: a failed call has no message, so the size of its answer is wrong.

Source: RFC 9113, sections 4.1 (frames), 6 (their types) and 6.9 (flow control).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from loadtest.bench.generator.c_library import (
    POLL_BROKEN,
    POLL_IN,
    POLL_OUT,
    now_ns,
    receive,
    send_some,
    wait_for_any,
)
from loadtest.bench.generator.latencies import record

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK = 1, 1
_INITIAL_WINDOW, _MAX_FRAME = 4, 5
# Number of received bytes after which the client sends a WINDOW_UPDATE: half of the largest window.
_GIVE_BACK = 1 << 30

# Columns of a connection's row in the array that holds the state of all connections.
FD, HAVE, SKIP, ENDING, OUT_BEGIN, OUT_END, WINDOW, PEER_WINDOW, PEER_FRAME, UNRETURNED, NEXT_ID = range(11)
CONNECTION_COLUMNS = 11
# Columns of a stream's row in the array that holds the state of all streams.
ID, STARTED, VARIANT, SENT, STREAM_WINDOW, RECEIVED = range(6)
STREAM_COLUMNS = 6
# Indices of the load generator's counters in its array `counts`.
DONE, WRONG, BROKEN, IN_FLIGHT, NEXT_VARIANT = range(5)
NUM_COUNTS = 5
# Bytes of the buffer for a control frame that arrives in pieces: enough for a SETTINGS frame of a hundred entries.
CARRY_BYTES = 1024


@njit(cache=True, nogil=True)
def _put(out, at, value, size):  # type: ignore[no-untyped-def]
    for i in range(size):
        out[at + i] = (value >> (8 * (size - 1 - i))) & 0xFF
    return at + size


@njit(cache=True, nogil=True)
def _get(data, at, size):  # type: ignore[no-untyped-def]
    value = 0
    for i in range(size):
        value = (value << 8) | data[at + i]
    return value


@njit(cache=True, nogil=True)
def _frame(row, out, length, kind, flags, stream_id):  # type: ignore[no-untyped-def]
    # Writes the header of a frame into the send buffer; the caller writes the payload at OUT_END.
    at = _put(out, row[OUT_END], length, 3)
    at = _put(out, at, kind, 1)
    at = _put(out, at, flags, 1)
    row[OUT_END] = _put(out, at, stream_id, 4)


@njit(cache=True, nogil=True)
def _pump(row, stream, out, body, size):  # type: ignore[no-untyped-def]
    # Copies as much of a request's DATA into the send buffer as the flow-control windows allow.
    while stream[SENT] < size:
        chunk = min(size - stream[SENT], row[PEER_FRAME], row[WINDOW], stream[STREAM_WINDOW])
        if chunk <= 0:
            return
        begin = stream[SENT]
        is_last = begin + chunk == size
        _frame(row, out, chunk, DATA, _END_STREAM if is_last else 0, stream[ID])
        at = row[OUT_END]
        out[at : at + chunk] = body[begin : begin + chunk]
        row[OUT_END] = at + chunk
        row[WINDOW] -= chunk
        stream[STREAM_WINDOW] -= chunk
        stream[SENT] += chunk


@njit(cache=True, nogil=True)
def _start(row, stream, out, heads, head_sizes, bodies, sizes, counts, now):  # type: ignore[no-untyped-def]
    stream[ID] = row[NEXT_ID]
    row[NEXT_ID] += 2
    stream[STARTED] = now
    stream[VARIANT] = counts[NEXT_VARIANT] % sizes.shape[0]
    head = heads[counts[NEXT_VARIANT] % head_sizes.shape[0]][: head_sizes[counts[NEXT_VARIANT] % head_sizes.shape[0]]]
    counts[NEXT_VARIANT] += 1
    counts[IN_FLIGHT] += 1
    stream[SENT] = 0
    stream[RECEIVED] = 0
    stream[STREAM_WINDOW] = row[PEER_WINDOW]
    if row[OUT_BEGIN] == row[OUT_END]:
        row[OUT_BEGIN] = row[OUT_END] = 0
    elif row[OUT_BEGIN] > 0:
        # Move the unsent bytes to the start of the buffer, so that a whole request fits after them.
        waiting = row[OUT_END] - row[OUT_BEGIN]
        for i in range(waiting):
            out[i] = out[row[OUT_BEGIN] + i]
        row[OUT_BEGIN], row[OUT_END] = 0, waiting
    _frame(row, out, head.shape[0], HEADERS, 4, stream[ID])
    at = row[OUT_END]
    out[at : at + head.shape[0]] = head
    row[OUT_END] = at + head.shape[0]
    _pump(row, stream, out, bodies[stream[VARIANT]], sizes[stream[VARIANT]])


@njit(cache=True, nogil=True)
def _settings(row, streams, out, carry, length, bodies, sizes):  # type: ignore[no-untyped-def]
    for at in range(9, 9 + length - 5, 6):
        name, value = _get(carry, at, 2), _get(carry, at + 2, 4)
        if name == _MAX_FRAME:
            # The client sends HTTP/2 frames of at most 64 KB, even if the server allows larger ones: larger frames gain
            # nothing and need larger buffers.
            row[PEER_FRAME] = min(value, 65536)
        elif name == _INITIAL_WINDOW:
            for s in range(streams.shape[0]):
                streams[s, STREAM_WINDOW] += value - row[PEER_WINDOW]
            row[PEER_WINDOW] = value
            for s in range(streams.shape[0]):
                if streams[s, ID]:
                    _pump(row, streams[s], out, bodies[streams[s, VARIANT]], sizes[streams[s, VARIANT]])
    _frame(row, out, 0, SETTINGS, _ACK, 0)


@njit(cache=True, nogil=True)
def _window_update(row, streams, out, carry, bodies, sizes):  # type: ignore[no-untyped-def]
    stream_id, more = _get(carry, 5, 4), _get(carry, 9, 4)
    if stream_id == 0:
        row[WINDOW] += more
    for s in range(streams.shape[0]):
        if streams[s, ID] and stream_id in (0, streams[s, ID]):
            if stream_id:
                streams[s, STREAM_WINDOW] += more
            _pump(row, streams[s], out, bodies[streams[s, VARIANT]], sizes[streams[s, VARIANT]])


@njit(cache=True, nogil=True)
def _finish(row, stream, out, heads, head_sizes, bodies, sizes, expected, counts, histogram, now, goes_on):  # type: ignore[no-untyped-def]
    record(histogram, now - stream[STARTED])
    counts[DONE] += 1
    counts[IN_FLIGHT] -= 1
    if stream[RECEIVED] != expected[stream[VARIANT]]:
        counts[WRONG] += 1
    stream[ID] = 0
    if goes_on:
        _start(row, stream, out, heads, head_sizes, bodies, sizes, counts, now)


@njit(cache=True, nogil=True)
def _read(
    row, streams, out, carry, data, n, heads, head_sizes, bodies, sizes, expected, counts, histogram, now, goes_on
):  # type: ignore[no-untyped-def]
    # Parses n received bytes and prepares frames to send; returns False if the server reset a stream or closed the
    # connection.
    at = 0
    while at < n:
        if row[SKIP] > 0:
            taken = min(row[SKIP], n - at)
            row[SKIP] -= taken
            at += taken
        else:
            carry[row[HAVE]] = data[at]
            row[HAVE] += 1
            at += 1
            if row[HAVE] < 9:
                continue
            length, kind, flags, stream_id = _get(carry, 0, 3), carry[3], carry[4], _get(carry, 5, 4)
            if kind == RESET or kind == GOAWAY:
                return False
            if kind == SETTINGS or kind == PING or kind == WINDOW_UPDATE:
                if 9 + length > CARRY_BYTES:
                    return False
                if row[HAVE] < 9 + length:
                    continue
                if kind == WINDOW_UPDATE:
                    _window_update(row, streams, out, carry, bodies, sizes)
                elif not flags & _ACK:
                    if kind == SETTINGS:
                        _settings(row, streams, out, carry, length, bodies, sizes)
                    else:
                        _frame(row, out, 8, PING, _ACK, 0)
                        out[row[OUT_END] : row[OUT_END] + 8] = carry[9:17]
                        row[OUT_END] += 8
                row[HAVE] = 0
                continue
            row[HAVE] = 0
            row[SKIP] = length
            if kind == DATA:
                row[UNRETURNED] += length
            if kind == DATA or (kind == HEADERS and flags & _END_STREAM):
                for s in range(streams.shape[0]):
                    if streams[s, ID] == stream_id:
                        if kind == DATA:
                            streams[s, RECEIVED] += length
                        if flags & _END_STREAM:
                            row[ENDING] = s + 1
        if row[SKIP] == 0 and row[ENDING] > 0:
            stream = streams[row[ENDING] - 1]
            row[ENDING] = 0
            _finish(row, stream, out, heads, head_sizes, bodies, sizes, expected, counts, histogram, now, goes_on)
    if row[UNRETURNED] > _GIVE_BACK:
        _frame(row, out, 4, WINDOW_UPDATE, 0, 0)
        row[OUT_END] = _put(out, row[OUT_END], row[UNRETURNED], 4)
        row[UNRETURNED] = 0
    return True


@njit(cache=True, nogil=True)
def run(
    connections,
    streams,
    outs,
    carries,
    waiting,
    data,
    heads,
    head_sizes,
    bodies,
    sizes,
    expected,
    counts,
    histogram,
    duration_ns,
    goes_on,
):  # type: ignore[no-untyped-def]
    """Sends calls and counts answers for duration_ns; if goes_on is false, only waits until no call is in flight.

    Args:
      connections: [C, CONNECTION_COLUMNS] int64; streams: [C, M, STREAM_COLUMNS] int64, ID 0 means unused.
      outs: [C, bytes of M requests twice] uint8, send buffers; carries: [C, CARRY_BYTES] uint8; data: [any] uint8,
          scratch.
      waiting: [C, 2] int32, the argument of c_library.wait_for_any.
      heads: [H, longest] uint8 with head_sizes: [H], header blocks that requests use in turn.
      bodies: [K, longest] uint8 with sizes: [K]; expected: [K] bytes of DATA.
      counts: [NUM_COUNTS] int64; histogram: [NUM_BUCKETS] int64.
    """
    clock = np.zeros(2, np.int64)
    now = now_ns(clock)
    end = now + duration_ns
    if goes_on:
        for c in range(connections.shape[0]):
            for s in range(streams.shape[1]):
                if streams[c, s, ID] == 0:
                    _start(connections[c], streams[c, s], outs[c], heads, head_sizes, bodies, sizes, counts, now)
    while now < end and counts[BROKEN] == 0 and (goes_on or counts[IN_FLIGHT] > 0):
        for c in range(connections.shape[0]):
            row = connections[c]
            if row[OUT_BEGIN] < row[OUT_END]:
                row[OUT_BEGIN] = send_some(row[FD], outs[c], row[OUT_BEGIN], row[OUT_END])
            wanted = POLL_IN | (POLL_OUT if row[OUT_BEGIN] < row[OUT_END] else 0)
            waiting[c, 1] = wanted
        wait_for_any(waiting, 100)
        for c in range(connections.shape[0]):
            found = waiting[c, 1] >> 16
            if found & POLL_IN:
                row = connections[c]
                n = receive(row[FD], data)
                now = now_ns(clock)
                if n == 0 or (
                    n > 0
                    and not _read(
                        row,
                        streams[c],
                        outs[c],
                        carries[c],
                        data,
                        n,
                        heads,
                        head_sizes,
                        bodies,
                        sizes,
                        expected,
                        counts,
                        histogram,
                        now,
                        goes_on,
                    )
                ):
                    counts[BROKEN] += 1
                elif row[OUT_BEGIN] < row[OUT_END]:
                    row[OUT_BEGIN] = send_some(row[FD], outs[c], row[OUT_BEGIN], row[OUT_END])
            elif found & POLL_BROKEN:
                counts[BROKEN] += 1
        now = now_ns(clock)
