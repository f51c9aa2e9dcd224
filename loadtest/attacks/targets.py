"""Describes a port to attack, with the bytes of a small and of a large request, and starts servers to attack."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from loadtest.attacks import frames
from loadtest.live_server import LiveServer, client_context, server_flags, write_ssl_config
from loadtest.wire import PREDICT_METHOD, framed, message_classes, predict_request
from tests.toy_described import write_lookup_model

Wire = Literal["http2", "http1"]
_CONNECT_S = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """One port of a server, with the requests that an attacker and the victim send to it.

    body: body of the small request; empty: that request is a GET.
    large_body: body of a request with an answer of megabytes.
    pids: the processes whose memory is watched.
    admin_port: the port of the admin routes, if the small request is one that a reference server answers; else 0.
    credentials: header line with the token of a caller that has all rights, if the server has callers.
    model, feature: what the small request reads, on a server of this project; its table has the feature's name.
    """

    wire: Wire
    host: str
    port: int
    path: str
    body: bytes = b""
    large_body: bytes = b""
    is_grpc: bool = False
    is_tls: bool = False
    pids: tuple[int, ...] = ()
    admin_port: int = 0
    credentials: bytes = b""
    model: str = ""
    feature: str = ""

    @property
    def name(self) -> str:
        """The protocol of the port; "reference" for the victim's requests to a reference server."""
        wire = "reference" if self.admin_port else "h2c" if self.wire == "http2" and not self.is_grpc else self.wire
        return f"{wire} over TLS" if self.is_tls else wire

    def connect(self, *, receive_bytes: int | None = None) -> socket.socket:
        """Opens a connection to the port, with TLS if the port uses it.

        Args:
          receive_bytes: size of the socket's receive buffer; None: the system's default.
        """
        sock = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET, socket.SOCK_STREAM)
        sock.settimeout(_CONNECT_S)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if receive_bytes is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            sock.connect((self.host, self.port))
            if self.is_tls:
                sock = client_context("h2" if self.wire == "http2" else "http/1.1").wrap_socket(sock)
        except OSError:
            sock.close()
            raise
        return sock

    def fields(self, *more: tuple[bytes, bytes], path: str = "") -> bytes:
        """Encodes the header fields of an HTTP/2 request as an HPACK block."""
        found = [
            (b":method", b"POST"),
            (b":scheme", b"https" if self.is_tls else b"http"),
            (b":path", (path or self.path).encode()),
            (b":authority", b"localhost"),
        ]
        if self.is_grpc:
            found += [(b"content-type", b"application/grpc"), (b"te", b"trailers")]
        return frames.block([*found, *more])

    def request(self, stream: int, *, is_large: bool = False) -> bytes:
        """Encodes the target's small or large request as HTTP/2: a HEADERS frame, then DATA frames with the body."""
        body = self.large_body if is_large else self.body
        return self.open_request(stream) + frames.data_frames(stream, body)

    def open_request(self, stream: int, *more: tuple[bytes, bytes]) -> bytes:
        """Encodes the HEADERS frame of an HTTP/2 request whose body is sent later."""
        return frames.frame(frames.HEADERS, frames.END_HEADERS, stream, self.fields(*more))

    def get(self, path: str, *lines: bytes, is_signed: bool = True) -> bytes:
        """Encodes an HTTP/1.1 GET request, with the target's credentials if `is_signed` is true."""
        return b"GET %s HTTP/1.1\r\n" % path.encode() + self._lines(lines, is_signed=is_signed) + b"\r\n"

    def post(self, path: str, body: bytes, *lines: bytes, is_signed: bool = True) -> bytes:
        """Encodes an HTTP/1.1 POST request, with the target's credentials if `is_signed` is true."""
        lines = (*lines, b"content-length: %d" % len(body))
        return b"POST %s HTTP/1.1\r\n" % path.encode() + self._lines(lines, is_signed=is_signed) + b"\r\n" + body

    def _lines(self, lines: tuple[bytes, ...], *, is_signed: bool) -> bytes:
        more = (self.credentials,) if self.credentials and is_signed else ()
        return b"".join(line + b"\r\n" for line in (b"host: localhost", *more, *lines))

    def head(self, *lines: bytes, host: bytes = b"host: localhost\r\n") -> bytes:
        """Encodes the request line and headers of an HTTP/1.1 POST, without the empty line after them."""
        return b"POST %s HTTP/1.1\r\n" % self.path.encode() + host + b"".join(line + b"\r\n" for line in lines)

    def whole(self, body: bytes | None = None, *lines: bytes) -> bytes:
        """Encodes an HTTP/1.1 request with `body`; if `body` is None, with the body of the target's small request."""
        body = self.body if body is None else body
        return self.head(*lines, b"content-length: %d" % len(body)) + b"\r\n" + body


HOST = "127.0.0.1"
_MODEL, _FEATURE = "attacked", "user"
# Rows and columns of the attacked table, whose numbers are all 1.
ROWS, DIM = 36_864, 64
# Number of ids in an attack target's large request; the answer to it has about 8 MB.
_LARGE_IDS = 32_000
# Seconds that a server waits for a client that sends slowly or does not read; an attack lasts longer.
_PATIENCE_S = 1
_IMPATIENT = [f"--{name}={_PATIENCE_S}" for name in ("stall_timeout_s", "rest_api_keep_alive_s")]
_TOKEN = b"right"
_CREDENTIALS = b"authorization: Bearer " + _TOKEN


def targets_of(
    host: str, grpc_port: int | None, http_port: int | None, model: str, feature: str, pids: tuple[int, ...]
) -> list[Target]:
    """Returns the ports of a server of this project as targets of attacks: gRPC, HTTP/1.1, and HTTP/2 on the HTTP port.

    Args:
      model, feature: what the victim looks up; ids 0 and 1 must be in its table.
    """
    one = partial(Target, host=host, model=model, feature=feature, pids=pids)
    found = []
    if grpc_port:
        small, large = (_message(model, feature, ids) for ids in ([1], [1] * _LARGE_IDS))
        found.append(one("http2", port=grpc_port, path=PREDICT_METHOD, body=small, large_body=large, is_grpc=True))
    if http_port:
        small, large = (json.dumps({"features": {feature: ids}}).encode() for ids in ([1], [1] * _LARGE_IDS))
        path = f"/v1/models/{model}:lookup"
        found.append(one("http1", port=http_port, path=path, body=small, large_body=large))
        found.append(replace(found[-1], wire="http2"))
    return found


def reference_of(
    host: str, http_port: int, admin_port: int, model: str, feature: str, pids: tuple[int, ...] = ()
) -> Target:
    """Returns a server with the file of write_callers() as a target, whose victim asks for a model's status."""
    named = Target("http1", host, http_port, f"/v1/models/{model}", model=model, feature=feature)
    return replace(named, pids=pids, admin_port=admin_port, credentials=_CREDENTIALS)


def write_callers(folder: Path) -> Path:
    """Writes an --auth_config with one caller, who has all rights and the token of reference_of()."""
    file = folder / "auth.toml"
    file.write_text(
        f"""[[caller]]
        name = "attacked"
        token_sha256 = ["{hashlib.sha256(_TOKEN).hexdigest()}"]
        [[caller.allow]]
        models = ["*"]
        rights = ["predict", "metadata", "admin"]
        """
    )
    return file


def write_version(folder: Path) -> None:
    """Writes a version folder with one table, and the signature `lookup` of its feature."""
    features = {"lookup": {_FEATURE: (_FEATURE, {"ids": _FEATURE, "output": _FEATURE})}}
    write_lookup_model(folder, {_FEATURE: np.ones((ROWS, DIM), np.float32)}, features)


def _message(model: str, feature: str, ids: list[int]) -> bytes:
    data: bytes = predict_request(message_classes()[0], model, "lookup", {feature: ids}).SerializeToString()
    return framed(data)


@contextmanager
def ours(folder: Path, flags: list[str]) -> Iterator[list[Target]]:
    """Serves a small model with three servers of this project: one is plain, one has callers, and one has TLS ports."""
    write_version(folder / _MODEL / "1")
    given = [f"--model_base_path={folder / _MODEL}", f"--model_name={_MODEL}", "--graph_signatures=off"]
    given += ["--threads=1", *_IMPATIENT, *flags]
    with ExitStack() as stack:
        server = stack.enter_context(LiveServer(*given))
        found = _of_server(server.ready())
        signed = stack.enter_context(
            LiveServer(*given, f"--auth_config={write_callers(folder)}", f"--delta_journal_dir={folder}")
        ).ready()
        ports = signed.ports
        found.append(reference_of(HOST, ports["http_port"], ports["admin_port"], _MODEL, _FEATURE, (signed.pid,)))
        config = write_ssl_config(folder)
        # Do not wait until the second server, which has the TLS ports, is ready: the victim's first request waits until
        # that server's model is loaded.
        second = stack.enter_context(LiveServer(*given, *server_flags(config)))
        yield found + secured(_of_server(second))


def _of_server(server: LiveServer) -> list[Target]:
    ports = server.ports
    return targets_of(HOST, ports["grpc_port"], ports["http_port"], _MODEL, _FEATURE, (server.pid,))


def secured(targets: list[Target]) -> list[Target]:
    """Returns the same ports with TLS instead of plain TCP. With TLS, the HTTP port offers HTTP/1.1 only."""
    return [replace(target, is_tls=True) for target in targets if target.is_grpc or target.wire == "http1"]
