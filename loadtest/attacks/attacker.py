"""Sends an attack's bytes for a limited time, records how the server ended the attack, and keeps attacks by name."""

from __future__ import annotations

import functools
import itertools
import os
import select
import socket
import ssl
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from loadtest.attacks import frames
from loadtest.attacks.targets import Target

# _READ_BYTES: largest size of one read. _KEPT_BYTES: number of bytes that are kept of the first HTTP/1.1 answer.
_READ_BYTES = 1 << 18
_KEPT_BYTES = 1 << 12
# After an attack, the attacker reads the server's last bytes, such as a GOAWAY, until no byte comes for _LAST_WORD_S,
# and at most for the time of the attack and _LAST_WORDS_S.
_LAST_WORD_S, _LAST_WORDS_S = 0.3, 2.0
# The attacker's nice value, so that the victim's process runs first if both share a processor.
_NICENESS = 10


@dataclass(frozen=True, slots=True)
class Outcome:
    """The reaction of the server to an attack.

    text: the reaction, in words.
    is_out: whether the server ended the attack: it closed the connections, or refused every request.
    sent_bytes: bytes that the attacker sent, over all connections.
    """

    text: str
    is_out: bool
    sent_bytes: int


class Conn:
    """One connection of the attacker to the attacked port."""

    def __init__(self, target: Target, sock: socket.socket, *, is_opaque: bool = False) -> None:
        self.sock = sock
        # Whether the server's bytes are encrypted, so that read() does not parse them.
        self._is_opaque = is_opaque
        self._has_answer = False
        self._is_http2 = target.wire == "http2"
        self._opened_s = time.monotonic()
        self.received = frames.Received()
        self.head = b""
        self.statuses: Counter[str] = Counter()
        # Numbers of the streams whose requests the attack begins and never finishes.
        self.unfinished: frozenset[int] = frozenset()
        self.sent = 0
        self.closed = ""
        self.closed_after_s = 0.0
        sock.setblocking(False)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, pieces: Iterable[bytes], end_s: float, *, reads: bool = True, pause_s: float = 0.0) -> None:
        """Sends pieces of bytes until none is left, the server closes, or `end_s`; reads answers if `reads` is true."""
        left = iter(pieces)
        piece = b""
        while not self.closed and (now_s := time.monotonic()) < end_s:
            if not piece:
                found = next(left, None)
                if found is None:
                    return
                piece = found
            readable, writable, _ = select.select(
                [self] if reads else [], [self], [], min(0.1, max(end_s - now_s, 0.0))
            )
            if readable:
                self.read()
            if writable and not self.closed:
                piece = piece[self._write(piece) :]
                if pause_s and not piece:
                    self.wait(min(time.monotonic() + pause_s, end_s), reads=reads)

    def _write(self, piece: bytes) -> int:
        try:
            size = self.sock.send(piece)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0
        except OSError as error:
            self._close(type(error).__name__)
            return 0
        self.sent += size
        return size

    def read(self) -> None:
        """Reads arrived bytes: counts HTTP/1.1 statuses, parses HTTP/2 frames, notes that the connection is closed."""
        try:
            data = self.sock.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError as error:
            self._close(type(error).__name__)
            return
        self._has_answer = True
        if not data:
            self._close("closed")
        elif self._is_opaque:
            return
        elif self._is_http2:
            self.received.feed(data)
        else:
            # A status line that is split over two reads is not counted, which makes the count a little too low.
            for part in data.split(b"HTTP/1.1 ")[1:]:
                self.statuses[part[:3].decode("latin-1")] += 1
            self.head = self.head or data[:_KEPT_BYTES]

    def wait(self, end_s: float, *, reads: bool = True, until: Callable[[], bool] = lambda: False) -> None:
        """Waits until `end_s`, the server closes the connection, or `until` is true; reads answers if `reads` is."""
        while not self.closed and not until() and (now_s := time.monotonic()) < end_s:
            if not reads:
                time.sleep(min(0.05, end_s - now_s))
            elif select.select([self], [], [], min(0.1, end_s - now_s))[0]:
                self.read()

    def answered(self, count: int, end_s: float) -> None:
        """Waits until `count` HTTP/1.1 answers have begun, the server closes the connection, or the time is over."""
        self.wait(end_s, until=lambda: self.statuses.total() >= count)

    def answer(self, end_s: float) -> None:
        """Waits until any bytes of the server arrive, it closes the connection, or the time is over."""
        self.wait(end_s, until=lambda: self._has_answer)

    def _close(self, how: str) -> None:
        self.closed = "reset" if how in ("ConnectionResetError", "BrokenPipeError") else how
        self.closed_after_s = time.monotonic() - self._opened_s

    def last_word(self, attack_s: float) -> None:
        """Reads the last bytes that the server sends after an attack, such as a GOAWAY after answers not read."""
        was = self.closed, self.closed_after_s
        # Read on even if the connection was reset: bytes that arrived before the reset may still be readable.
        self.closed = ""
        end_s = time.monotonic() + _LAST_WORDS_S + attack_s
        while not self.closed and time.monotonic() < end_s and select.select([self], [], [], _LAST_WORD_S)[0]:
            self.read()
        if was[0]:
            self.closed, self.closed_after_s = was

    def end(self) -> None:
        self.sock.close()


class Attacker:
    """Runner of one attack on one port. The attack's time begins at its first connection, when its bytes are made.

    is_ended: whether the server must end the attack. If not, a flood closes its connection at once: to read on would
      only let the server answer all requests that it has received.
    """

    def __init__(self, target: Target, seconds: float, *, is_ended: bool = True) -> None:
        self.target = target
        self.seconds = seconds
        self._is_ended = is_ended
        self.end_s = time.monotonic() + seconds
        self._conns: list[Conn] = []
        self._failed: Counter[str] = Counter()

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.end_s

    def connect(self, *, receive_bytes: int | None = None, is_raw: bool = False, is_admin: bool = False) -> Conn | None:
        """Opens a connection; None if that fails.

        Args:
          is_raw: opens TCP only, without TLS. is_admin: connects to the admin port.
        """
        target = replace(self.target, port=self.target.admin_port) if is_admin else self.target
        if not self._conns and not self._failed:
            self.end_s = time.monotonic() + self.seconds
        try:
            if is_raw:
                sock = socket.create_connection((target.host, target.port), 5)
            else:
                sock = target.connect(receive_bytes=receive_bytes)
        except OSError as error:
            self._failed[type(error).__name__] += 1
            return None
        conn = Conn(target, sock, is_opaque=is_raw and target.is_tls)
        self._conns.append(conn)
        return conn

    def connections(self, count: int, *, is_raw: bool = False, is_admin: bool = False) -> list[Conn]:
        """Opens so many connections, fewer if some fail or the time is over."""
        found = []
        for _ in range(count):
            # The time begins at the first connection.
            if self._conns and self.is_over:
                break
            if (conn := self.connect(is_raw=is_raw, is_admin=is_admin)) is not None:
                found.append(conn)
        return found

    def http2(self, *pairs: tuple[int, int], receive_bytes: int | None = None) -> Conn:
        """Opens an HTTP/2 connection and exchanges SETTINGS; raises ConnectionError if the server refuses."""
        conn = self.connect(receive_bytes=receive_bytes)
        if conn is None:
            raise ConnectionError("no connection")
        conn.send([frames.PREFACE + frames.settings(*pairs)], self.end_s)
        # The wait lets the server's SETTINGS arrive; then the attacker acknowledges them.
        conn.wait(min(time.monotonic() + 0.05, self.end_s))
        conn.send([frames.frame(frames.SETTINGS, frames.ACK, 0)], self.end_s)
        return conn

    def flood(self, pieces: Iterable[bytes], conn: Conn | None = None, *, reads: bool = True) -> None:
        """Sends bytes on one connection until the time is over; reads the last bytes of a server that must end it."""
        conn = conn or self.connect()
        if conn is None:
            return
        conn.send(pieces, self.end_s, reads=reads)
        conn.wait(self.end_s, reads=reads)
        if self._is_ended:
            conn.last_word(self.seconds)

    def until_closed(self, conns: Sequence[Conn]) -> None:
        """Reads on connections until the server has closed all of them, or the time is over."""
        while not self.is_over and not all(conn.closed for conn in conns):
            for conn in conns:
                conn.wait(min(time.monotonic() + 0.001, self.end_s))

    def hold(self, count: int, begun: bytes, *, is_raw: bool = False, is_admin: bool = False) -> None:
        """Sends bytes on each of many connections, and then nothing; waits until the server closes all of them."""
        conns = self.connections(count, is_raw=is_raw, is_admin=is_admin)
        for conn in conns:
            conn.send([begun], self.end_s)
        self.until_closed(conns)

    def open_and_close(self, *, is_raw: bool = False) -> None:
        """Opens connections one after the other, and closes each without a request."""
        while not self.is_over:
            if (conn := self.connect(is_raw=is_raw)) is not None:
                conn.end()

    def again_and_again(self, request: bytes, *, is_admin: bool = False) -> None:
        """Sends a request on one new connection after another, and waits for each answer."""
        while not self.is_over:
            conn = self.connect(is_admin=is_admin)
            if conn is None:
                time.sleep(0.01)
                continue
            conn.send([request], self.end_s)
            conn.answered(1, self.end_s)
            conn.end()

    def outcome(self) -> Outcome:
        conns = self._conns
        words: list[str] = []
        goaways = Counter(conn.received.goaway for conn in conns if conn.received.goaway)
        resets = sum((conn.received.resets for conn in conns), Counter[str]())
        statuses = sum((conn.statuses for conn in conns), Counter[str]())
        closed = [conn for conn in conns if conn.closed]
        words += [f"GOAWAY {code}" for code in goaways]
        words += [f"RST_STREAM {code} x {count}" for code, count in resets.most_common(2)]
        words += [f"{status or '?'} x {count}" for status, count in statuses.most_common(3)]
        unfinished = sum(len(conn.unfinished) for conn in conns)
        ended = sum(len(conn.unfinished & conn.received.ended_streams) for conn in conns)
        if unfinished:
            words.append(f"{ended} of {unfinished} requests ended")
        if closed:
            how = Counter(conn.closed for conn in closed).most_common(1)[0][0]
            number = "" if len(conns) == 1 else f" {len(closed)} of {len(conns)},"
            words.append(f"{how}{number} after {max(conn.closed_after_s for conn in closed):.2f} s")
        elif conns:
            words.append("kept")
        words += [f"not connected x {count} ({name})" for name, count in self._failed.items()]
        for conn in conns:
            conn.end()
        refused = [status for status in statuses if status >= "4"]
        # The server counts as having closed all connections even if one of ten or more is open: it may not have come to
        # the last connection yet.
        is_closed = len(closed) >= (len(conns) if len(conns) < 10 else len(conns) - 1)
        is_refused = (bool(refused) and len(refused) == len(statuses)) or ended == unfinished > 0
        is_out = is_closed or bool(goaways) or is_refused
        return Outcome(", ".join(words), is_out, sum(conn.sent for conn in conns))


def repeated(piece: bytes, size: int = 1 << 16) -> Iterator[bytes]:
    """Yields chunks of about `size` bytes that repeat a piece again and again, without end."""
    return itertools.repeat(piece * max(size // len(piece), 1))


def gzipped_zeros(mebibytes: int) -> bytes:
    """Returns zeros in gzip's format: one compressed block, repeated, because compressing so many zeros takes long."""
    zeros = bytes(1 << 20)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)
    crc = functools.reduce(lambda crc, _: zlib.crc32(zeros, crc), range(mebibytes), 0)
    head, end = b"\x1f\x8b\x08" + bytes(6) + b"\xff", b"\x03\x00"
    return head + block * mebibytes + end + crc.to_bytes(4, "little") + (mebibytes << 20).to_bytes(4, "little")


Attack = Callable[[Attacker], None]
# The protocol of an attacked port. grpc: HTTP/2 with gRPC. json: HTTP/1.1 with JSON. tls: HTTP/1.1 or HTTP/2 over TLS.
# reference: HTTP/1.1 with an admin port and callers, beside a victim whose requests the reference server answers.
Port = Literal["http2", "grpc", "http1", "json", "tls", "reference"]


@dataclass(frozen=True, slots=True)
class Case:
    """One attack, and the reaction that is expected of a server. what: describes the bytes that it sends.

    is_ended: whether a server must close the connection, or refuse each request. False: the attack consists of legal
      requests, or of requests that a server refuses stream by stream.
    least_s: shortest time of the attack after which a server can be expected to end it.
    cached_mib: memory that the server may keep as a cache for the attack's requests, beside what any attack may leave.
    """

    what: str
    attack: Attack
    port: Port
    is_ended: bool
    least_s: float = 0.0
    cached_mib: float = 0.0

    def fits(self, target: Target) -> bool:
        fits = {
            "http2": target.wire == "http2",
            "grpc": target.is_grpc,
            "http1": target.wire == "http1",
            "json": target.wire == "http1" and bool(target.large_body),
        }
        is_same_kind = bool(target.admin_port) == (self.port == "reference")
        return fits.get(self.port, True) and is_same_kind and target.is_tls == (self.port == "tls")


class Cases(dict[str, Case]):
    """Attacks by name, to which each file of cases adds its own."""

    def row(self, name: str, what: str, attack: Attack, port: Port, **more: Any) -> None:
        """Adds an attack, whose name begins with its protocol; more: the other fields of Case."""
        self[f"{'http1' if port == 'json' else port}.{name}"] = Case(what, attack, port, **({"is_ended": True} | more))

    def add(self, port: Port, **more: Any) -> Callable[[Attack], Attack]:
        """Returns a decorator that adds a function, whose docstring describes the attack."""

        def register(attack: Attack) -> Attack:
            self.row(attack.__name__, str(attack.__doc__), attack, port, **more)
            return attack

        return register


def run(target: Target, case: Case, seconds: float) -> Outcome:
    os.nice(_NICENESS)
    attacker = Attacker(target, seconds, is_ended=case.is_ended)
    try:
        case.attack(attacker)
    except OSError as error:
        found = attacker.outcome()
        return Outcome(f"{found.text}, {type(error).__name__}".lstrip(", "), found.is_out, found.sent_bytes)
    return attacker.outcome()
