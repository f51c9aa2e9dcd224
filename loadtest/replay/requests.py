"""One request as it is sent, its answer as it is stored, and the forms of requests: each has a file in the corpus."""

from __future__ import annotations

import base64
import contextlib
import http.client
import re
from dataclasses import dataclass
from typing import Any

from h2.exceptions import ProtocolError
from hpack import NeverIndexedHeaderTuple

from loadtest.live_server import LiveServer
from loadtest.wire import INFER_METHOD, PREDICT_METHOD, PREDICTION, framed
from tests.conformance.random_calls import Call
from tests.integration.h2_client import Answer, H2Client

_METHODS = {
    **{INFER_METHOD: "grpc_infer", PREDICT_METHOD: "grpc_predict", f"{PREDICTION}Classify": "grpc_classify"},
    **{f"{PREDICTION}Regress": "grpc_regress", f"{PREDICTION}MultiInference": "grpc_multi_inference"},
}
# Requests to these routes are of one form; requests to :predict and /infer are of two forms each.
_ROUTES = {":lookup": "lookup", ":rows": "rows", ":classify": "rest_classify", ":regress": "rest_regress"}
FORMS = (*_METHODS.values(), *_ROUTES.values(), *("rest_rows", "rest_columns", "infer_json", "infer_binary"))
# Requests to other methods and paths, most of which no route has; all are hand-written.
OTHER = "other"
BINARY_HEADER = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it is sent.

    name: the name of a hand-written case, or "random" and a number, and how it is sent if that is not the usual way.
    method: the HTTP method; "GRPC": the request is an HTTP/2 POST in gRPC's framing.
    headers: headers besides those that every client sends. A gRPC header with an empty value removes the client's.
    body: the body, or all DATA of the stream, with gRPC's prefixes.
    """

    form: str
    name: str
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def is_grpc(self) -> bool:
        """Whether the request is sent over HTTP/2 to the gRPC port."""
        return self.method == "GRPC"

    def text(self) -> str:
        """Returns the request as text, one character for each byte of the body; the list of changes matches it."""
        lines = [self.name, f"{self.method} {self.path}", *(f"{name}: {value}" for name, value in self.headers)]
        return "\n".join([*lines, "", self.body.decode("latin-1")])


def of_call(call: Call, name: str, method: str = "POST") -> Request:
    """Makes the request of a call; its form follows from the path, the headers and the body."""
    if call.is_grpc:
        form = _METHODS.get(call.path, OTHER)
        return Request(form, name, "GRPC", call.path, call.headers, framed(call.body))
    (verb,) = re.findall(r"(:[a-z]+|/infer|)(?:\?.*)?$", call.path)[:1] or [""]
    form = _ROUTES.get(verb, OTHER)
    if verb == ":predict":
        form = "rest_rows" if b'"instances"' in call.body else "rest_columns"
    elif verb == "/infer":
        form = "infer_binary" if BINARY_HEADER in dict(call.headers) else "infer_json"
    return Request(form, name, method, call.path, call.headers, call.body)


_TIMEOUT_S = 60
# An answer in JSON. HTTP: "status", "headers" and "body"; gRPC: "headers" (with the trailers), "body" (all DATA) and
# "reset" (the code of RST_STREAM, or null). "lost" instead: the server closed the connection without an answer.
Stored = dict[str, Any]


class Exchanges:
    """A client of one server, with one connection to each port. Concurrency: one caller at a time."""

    def __init__(self, server: LiveServer) -> None:
        self._server = server
        self._http = http.client.HTTPConnection("127.0.0.1", server.ports["http_port"], timeout=_TIMEOUT_S)
        self._grpc: H2Client | None = None

    def send(self, request: Request) -> Stored:
        """Sends a request and returns the answer.

        A server may close an idle connection, or one whose last request it refused, just when the client sends on it,
        so a request without an answer is sent once more on a new connection.

        Raises:
          RuntimeError: the server has ended, perhaps because of this request or one before it.
        """
        sent = self._send_grpc if request.is_grpc else self._send_http
        for is_last in (False, True):
            try:
                return sent(request)
            except (OSError, http.client.HTTPException, ProtocolError) as error:
                self.close()
                if not self._server.is_alive:
                    text = f"{request.form}, {request.name}"
                    raise RuntimeError(f"the server ended with {self._server.exit_status} at {text}") from error
                if is_last:
                    return {"lost": type(error).__name__}
        raise AssertionError

    def _send_http(self, request: Request) -> Stored:
        connection, names = self._http, {name.lower() for name, _ in request.headers}
        connection.putrequest(request.method, request.path, skip_host="host" in names, skip_accept_encoding=True)
        for name, value in request.headers:
            connection.putheader(name, value)
        if not names & {"content-length", "transfer-encoding"} and (request.body or request.method == "POST"):
            connection.putheader("Content-Length", str(len(request.body)))
        connection.endheaders()
        # A server may answer and close before it has read a large body.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.send(request.body)
        response = connection.getresponse()
        headers = [[name.lower(), value] for name, value in response.getheaders()]
        return {"status": response.status, "headers": headers, "body": _text(response.read())}

    def _send_grpc(self, request: Request) -> Stored:
        if self._grpc is None:
            self._grpc = H2Client(self._server.ports["grpc_port"])
            # Texts of errors may end with a space, which this client otherwise takes for a protocol error.
            self._grpc.h2.config.validate_inbound_headers = False
        client = self._grpc
        headers = {":method": "POST", ":scheme": "http", ":path": request.path, ":authority": "test"}
        headers |= {"te": "trailers", "content-type": "application/grpc", **dict(request.headers)}
        stream_id = client.h2.get_next_available_stream_id()
        # Headers that are never indexed leave no state on the connection: grpcio remembers that one was malformed.
        client.h2.send_headers(stream_id, [NeverIndexedHeaderTuple(*pair) for pair in headers.items() if pair[1]])
        answer = client.answers[stream_id] = Answer()
        client.send(stream_id, request.body, is_last=False)
        if not answer.is_over:
            client.h2.end_stream(stream_id)
            client.flush()
        while not answer.is_over and not client.is_closed:
            client.receive()
        client.answers.clear()
        client.events.clear()
        if not answer.is_over:
            raise ConnectionError("the server closed the connection")
        if client.is_closed:
            self.close()
        found = sorted([name, value] for name, value in answer.headers.items())
        return {"headers": found, "body": _text(answer.data), "reset": answer.reset}

    def close(self) -> None:
        self._http.close()
        if self._grpc is not None:
            self._grpc.socket.close()
            self._grpc = None


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
