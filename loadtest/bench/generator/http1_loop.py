"""The inner loop of the HTTP/1.1 load: sends POST requests on persistent connections, one at a time on each.

An answer must have status 200 and a Content-Length; all measured servers send both.
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
from loadtest.bench.generator.http2_loop import BROKEN, DONE, IN_FLIGHT, NEXT_VARIANT, WRONG
from loadtest.bench.generator.latencies import record

# Columns of a connection's row in the array of all connections. LEFT: number of bytes that the answer's body still
# lacks; -1 until the answer's head is complete. LEFT: missing bytes of the answer's body; -1 until the answer's head is
# complete.
FD, SENT, STARTED, VARIANT, HAVE, LEFT, IS_BUSY = range(7)
CONNECTION_COLUMNS = 7
HEAD_BYTES = 16384

_LENGTH = np.frombuffer(b"content-length:", np.uint8)
_OK = np.frombuffer(b"HTTP/1.1 200", np.uint8)


@njit(cache=True, nogil=True)
def _length(head, n):  # type: ignore[no-untyped-def]
    # Returns the Content-Length in the first n bytes, the head, of an HTTP answer; -1 if there is none or the status is
    # not 200.
    for i in range(_OK.shape[0]):
        if head[i] != _OK[i]:
            return -1
    for line in range(n):
        if head[line] != 10:
            continue
        matches = line + 1 + _LENGTH.shape[0] < n
        for i in range(_LENGTH.shape[0]):
            if not matches or (head[line + 1 + i] | 0x20) != (_LENGTH[i] | 0x20):
                matches = False
                break
        if matches:
            value = 0
            for i in range(line + 1 + _LENGTH.shape[0], n):
                if head[i] == 13:
                    return value
                if head[i] != 32:
                    value = value * 10 + head[i] - 48
    return -1


@njit(cache=True, nogil=True)
def _start(row, sizes, counts, now):  # type: ignore[no-untyped-def]
    row[VARIANT] = counts[NEXT_VARIANT] % sizes.shape[0]
    counts[NEXT_VARIANT] += 1
    counts[IN_FLIGHT] += 1
    row[SENT], row[STARTED], row[HAVE], row[LEFT], row[IS_BUSY] = 0, now, 0, -1, 1


@njit(cache=True, nogil=True)
def _read(row, head, data, n, sizes, expected, counts, histogram, now, goes_on):  # type: ignore[no-untyped-def]
    # Adds n received bytes to the answer of the connection's request. Returns False if the answer's status is not 200,
    # its head is too long or has no Content-Length, or its body is longer than Content-Length.
    at = 0
    while row[LEFT] < 0 and at < n and row[HAVE] < HEAD_BYTES:
        head[row[HAVE]] = data[at]
        row[HAVE] += 1
        at += 1
        have = row[HAVE]
        if data[at - 1] == 10 and have >= 4 and head[have - 2] == 13 and head[have - 3] == 10:
            row[LEFT] = _length(head, have)
            if row[LEFT] < 0:
                return False
            if row[LEFT] != expected[row[VARIANT]]:
                counts[WRONG] += 1
    if row[LEFT] < 0:
        return row[HAVE] < HEAD_BYTES
    row[LEFT] -= n - at
    if row[LEFT] < 0:
        return False
    if row[LEFT] == 0:
        record(histogram, now - row[STARTED])
        counts[DONE] += 1
        counts[IN_FLIGHT] -= 1
        row[IS_BUSY] = 0
        if goes_on:
            _start(row, sizes, counts, now)
    return True


@njit(cache=True, nogil=True)
def _send(row, bodies, sizes):  # type: ignore[no-untyped-def]
    # Sends more bytes of the connection's current request. Returns True if all of it is sent, or if no request is to be
    # sent.
    variant = row[VARIANT]
    if row[IS_BUSY] and row[SENT] < sizes[variant]:
        row[SENT] = send_some(row[FD], bodies[variant], row[SENT], sizes[variant])
        return row[SENT] == sizes[variant]
    return True


@njit(cache=True, nogil=True)
def run(connections, heads, waiting, data, requests, sizes, expected, counts, histogram, duration_ns, goes_on):  # type: ignore[no-untyped-def]
    """Sends requests and counts answers for duration_ns; if goes_on is false, only waits for the requests in flight.

    Args:
      connections: [C, CONNECTION_COLUMNS] int64; heads: [C, HEAD_BYTES] uint8; data: [any] uint8, a receive buffer.
      requests: [K, longest] uint8, heads and bodies, with sizes: [K]; expected: [K] bytes of the answer's body.
      waiting, counts, histogram: as in http2_loop.run.
    """
    clock = np.zeros(2, np.int64)
    now = now_ns(clock)
    end = now + duration_ns
    for c in range(connections.shape[0]):
        if goes_on and not connections[c, IS_BUSY]:
            _start(connections[c], sizes, counts, now)
    while now < end and counts[BROKEN] == 0 and (goes_on or counts[IN_FLIGHT] > 0):
        for c in range(connections.shape[0]):
            waiting[c, 1] = POLL_IN if _send(connections[c], requests, sizes) else POLL_IN | POLL_OUT
        wait_for_any(waiting, 100)
        for c in range(connections.shape[0]):
            found = waiting[c, 1] >> 16
            row = connections[c]
            if found & POLL_IN:
                n = receive(row[FD], data)
                now = now_ns(clock)
                if n == 0 or (
                    n > 0 and not _read(row, heads[c], data, n, sizes, expected, counts, histogram, now, goes_on)
                ):
                    counts[BROKEN] += 1
                elif n > 0:
                    _send(row, requests, sizes)
            elif found & POLL_BROKEN:
                counts[BROKEN] += 1
        now = now_ns(clock)
