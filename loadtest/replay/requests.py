"""One request as it is sent, and the forms of requests: each form has a file in the corpus."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.conformance.random_calls import Call

_PREDICTION = "/tensorflow.serving.PredictionService/"
_METHODS = {
    "/inference.GRPCInferenceService/ModelInfer": "grpc_infer",
    f"{_PREDICTION}Predict": "grpc_predict",
    f"{_PREDICTION}Classify": "grpc_classify",
    f"{_PREDICTION}Regress": "grpc_regress",
    f"{_PREDICTION}MultiInference": "grpc_multi_inference",
}
# Requests to these routes are of one form; requests to :predict and /infer are of two forms each.
_ROUTES = {":lookup": "lookup", ":rows": "rows", ":classify": "rest_classify", ":regress": "rest_regress"}
FORMS = (
    *_METHODS.values(),
    *_ROUTES.values(),
    *("rest_rows", "rest_columns", "infer_json", "infer_binary"),
)
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


def framed(message: bytes, flag: int = 0) -> bytes:
    """Returns a message with gRPC's prefix: a flag that says whether it is compressed, and its length."""
    return bytes([flag]) + len(message).to_bytes(4, "big") + message


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
