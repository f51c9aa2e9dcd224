"""The C library's socket calls and clock, as functions that compiled code can call; addresses are plain integers."""

from __future__ import annotations

from numba import njit, types

_recv = types.ExternalFunction("recv", types.int64(types.int32, types.intp, types.intp, types.int32))
_send = types.ExternalFunction("send", types.int64(types.int32, types.intp, types.intp, types.int32))
_poll = types.ExternalFunction("poll", types.int32(types.intp, types.uint64, types.int32))
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.intp))

_DONT_WAIT, _NO_SIGNAL = 0x40, 0x4000
_MONOTONIC = 1
POLL_IN, POLL_OUT, POLL_BROKEN = 0x1, 0x4, 0x8 | 0x10 | 0x20


@njit(cache=True, nogil=True)
def now_ns(clock):  # type: ignore[no-untyped-def]
    """Returns the monotonic clock in nanoseconds; clock: [2] int64, memory for the result."""
    _clock_gettime(_MONOTONIC, clock.ctypes.data)
    return clock[0] * 1_000_000_000 + clock[1]


@njit(cache=True, nogil=True)
def receive(fd, buffer):  # type: ignore[no-untyped-def]
    """Reads from a socket into a buffer; returns the number of bytes, 0 at the connection's end, -1 if none came."""
    return _recv(fd, buffer.ctypes.data, buffer.shape[0], _DONT_WAIT)


@njit(cache=True, nogil=True)
def send_some(fd, buffer, begin, end):  # type: ignore[no-untyped-def]
    """Writes as much of buffer[begin:end] as the kernel accepts; returns the position of the first unwritten byte."""
    sent = _send(fd, buffer.ctypes.data + begin, end - begin, _DONT_WAIT | _NO_SIGNAL)
    return begin + sent if sent > 0 else begin


@njit(cache=True, nogil=True)
def wait_for_any(waiting, timeout_ms):  # type: ignore[no-untyped-def]
    """Calls poll(2). waiting: [C, 2] int32, a descriptor, and wanted events (low half) and found events (high half)."""
    return _poll(waiting.ctypes.data, waiting.shape[0], timeout_ms)
