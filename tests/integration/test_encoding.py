"""The core inflates requests and compresses answers on both wires: each answer, decoded, is the plain one."""

from __future__ import annotations

import gzip
import http.client
import json
import random
import shutil
import socket
import ssl
import subprocess
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import requests

from service.artifact.protos import message_class
from tests.certificates import Authority, ssl_config
from tests.conformance.wires import PREDICT, predict_request
from tests.exposition import read_exposition
from tests.integration.h2_client import Answer, H2Client, framed
from tests.integration.process import PATIENCE_S, ServerProcess, until
from tests.integration.raw_http import BODY, LOOKUP, answer, connect, post, status
from tests.toy_model import write_toy_model

MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
LIMIT = 8 << 20
CLOSE = b"connection: close"
# One row, a few, and so many that the core answers them, plain and compressed, on its pool for large work.
SIZES = (1, 300, 30_000)
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": lambda data: gzip.compress(data, 1),
    "GZIP": lambda data: gzip.compress(data[:7]) + gzip.compress(b"") + gzip.compress(data[7:]),
    "deflate": zlib.compress,
}


@pytest.fixture(scope="module")
def server(toy_model: Path) -> Iterator[ServerProcess]:
    """Starts a server of the toy model."""
    settings: dict[str, object] = {"model_base_path": toy_model, "graph_signatures": "off", "max_request_bytes": LIMIT}
    with ServerProcess(**settings, rest_api_cors_origins="https://app.example") as started:
        yield started.ready()


def infer(rows: int, *, is_binary_answer: bool) -> tuple[str, bytes, dict[str, str]]:
    """Returns an inference request with a binary tensor."""
    data = (np.arange(rows) % 5).tobytes()
    tensor = {"name": "user", "datatype": "INT64", "shape": [rows], "parameters": {"binary_data_size": len(data)}}
    parameters = {"signature_name": "lookup", "binary_data_output": is_binary_answer}
    document = json.dumps({"parameters": parameters, "inputs": [tensor]}).encode()
    return "/v2/models/default/infer", document + data, {"Inference-Header-Content-Length": str(len(document))}


def lookup(rows: int) -> tuple[str, bytes, dict[str, str]]:
    """Returns a lookup whose floats and ids differ."""
    ids = [row * 7 % 5 for row in range(rows)]
    return "/v1/models/default:lookup", json.dumps({"features": {"user": ids}}).encode(), {}


# Name of a form over HTTP -> a function that returns the path, the body and the headers of a request of some rows.
FORMS: dict[str, Callable[[int], tuple[str, bytes, dict[str, str]]]] = {
    "lookup": lookup,
    "predict": lambda rows: (
        "/v1/models/default:predict",
        json.dumps({"signature_name": "lookup", "inputs": {"user": [row % 5 for row in range(rows)]}}).encode(),
        {},
    ),
    "rows": lambda rows: (
        "/v1/models/default/tables/user:rows",
        json.dumps({"ids": [row % 5 for row in range(min(rows, 5000))]}).encode(),
        {},
    ),
    "infer, binary": lambda rows: infer(rows, is_binary_answer=True),
    "infer, JSON": lambda rows: infer(rows, is_binary_answer=False),
    "bad": lambda rows: ("/v1/models/default:lookup", b'{"features": {"user": [%d]}}' % (4 + rows), {}),
}


@dataclass(frozen=True)
class Reply:
    """An answer over HTTP/1.1, as it was sent."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


def ask(server: ServerProcess, path: str, body: bytes, headers: dict[str, str]) -> Reply:
    """Sends a POST request with these headers and http.client's own Host and Content-Length; returns the answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=PATIENCE_S)) as connection:
        connection.putrequest("POST", path, skip_accept_encoding=True)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())


def decoded(coding: str | None, body: bytes) -> bytes:
    """Returns the plain body of an answer."""
    return {None: lambda data: data, "gzip": gzip.decompress, "deflate": zlib.decompress}[coding](body)


def forwarded(server: ServerProcess) -> int:
    """Returns how many requests the core has forwarded; each request for the status page is one."""
    return sum(server.http.get("/v1/statusz").json()["data_plane"]["forwarded"].values())


@pytest.mark.parametrize("form", FORMS)
def test_a_compressed_http_request_gets_the_answer_of_the_plain_one(server: ServerProcess, form: str) -> None:
    before = forwarded(server)
    for rows in SIZES:
        path, body, headers = FORMS[form](rows)
        expected = ask(server, path, body, headers)
        for encoding, pack in PACK.items():
            found = ask(server, path, pack(body), {**headers, "Content-Encoding": encoding})
            assert (found.status, found.body) == (expected.status, expected.body), (rows, encoding)
    # Only the status page is forwarded, and bad requests, as far as the core words no refusal for them.
    if form != "bad":
        assert forwarded(server) - before == 1


@pytest.mark.parametrize("form", FORMS)
def test_a_compressed_request_of_http_2_gets_the_answer_of_the_plain_one(server: ServerProcess, form: str) -> None:
    for rows in SIZES:
        path, body, headers = FORMS[form](rows)
        expected = ask(server, path, body, headers)
        with H2Client(server.http_port) as client:
            streams = []
            for encoding in ("gzip", "deflate"):
                more = {name.lower().replace("-", "_"): value for name, value in headers.items()}
                begun = client.begin(path, content_type="application/json", content_encoding=encoding, **more)
                client.send(begun, PACK[encoding](body))
                streams.append(begun)
            for stream in streams:
                found = client.answer(stream)
                assert (int(found.headers[":status"]), found.data) == (expected.status, expected.body)


def test_a_compressed_request_over_tls(tmp_path: Path) -> None:
    authority = Authority()
    write_toy_model(tmp_path / "model" / "1")
    (tmp_path / "tls").write_text(ssl_config(authority.issue("localhost")))
    settings: dict[str, object] = {"model_base_path": tmp_path / "model", "graph_signatures": "off"}
    with ServerProcess(**settings, rest_api_ssl_config_file=tmp_path / "tls") as server:
        server.answering().wait_for_log("loaded")
        trusted = ssl.create_default_context(cadata=authority.pem)
        with httpx.Client(
            base_url=f"https://localhost:{server.http_port}", verify=trusted, timeout=PATIENCE_S
        ) as client:
            until(lambda: client.get("/readyz").status_code == 200)
            path, body, _ = lookup(30_000)
            expected = client.post(path, content=body, headers={"Accept-Encoding": "identity"})
            found = client.post(path, content=gzip.compress(body), headers={"Content-Encoding": "gzip"})
            assert found.headers["content-encoding"] == "gzip" and "content-encoding" not in expected.headers
            assert found.status_code == 200 and found.content == expected.content


def predict(rows: int) -> bytes:
    """Returns a Predict request for a lookup."""
    return predict_request("default", {"user": np.arange(rows) % 5})


def model_infer(rows: int) -> bytes:
    """Returns a ModelInfer request for a lookup."""
    request: Any = message_class("inference.ModelInferRequest")()
    request.model_name = "default"
    request.parameters["signature_name"].string_param = "lookup"
    tensor = request.inputs.add(name="user", datatype="INT64", shape=[rows])
    tensor.contents.int64_contents.extend(int(row) for row in np.arange(rows) % 5)
    return bytes(request.SerializeToString())


@pytest.mark.parametrize(("path", "message"), [(PREDICT, predict), (MODEL_INFER, model_infer)])
def test_grpcio_gets_the_same_answer_with_each_compression(
    server: ServerProcess, path: str, message: Callable[[int], bytes]
) -> None:
    before = forwarded(server)
    call = server.channel.unary_unary(path)
    for rows in SIZES:
        expected = call(message(rows), timeout=PATIENCE_S)
        for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            for metadata in ((), (("x-response-encoding", "gzip"),)):
                found, rpc = call.with_call(
                    message(rows), timeout=PATIENCE_S, compression=compression, metadata=metadata
                )
                assert found == expected, (rows, compression, rpc.initial_metadata())
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", compression=grpc.Compression.Gzip) as channel:
            assert channel.unary_unary(path)(message(rows), timeout=PATIENCE_S) == expected
    assert forwarded(server) - before == 1


def test_many_compressed_calls_of_one_connection(server: ServerProcess) -> None:
    """More calls than a connection may hold inflated messages: the others wait, and each gets its own answer."""
    bodies = [packed(predict(rows)) for rows in (1, 500, 40_000)]
    with H2Client(server.grpc_port) as client:
        streams = []
        for number in range(60):
            stream = client.begin(PREDICT, grpc_encoding="gzip")
            client.send(stream, bodies[number % 3])
            streams.append(stream)
        sizes = {len(client.answer(stream).message) for stream in streams}
        assert len(sizes) == 3


def packed(message: bytes) -> bytes:
    """Returns a gzip-compressed message with gRPC's prefix, which says that it is compressed."""
    return b"\1" + framed(gzip.compress(message, 1))[1:]


def unpacked(answer: Answer) -> tuple[bytes, bool]:
    """Returns an answer's message, inflated if its flag and its header say so, and whether it was."""
    assert answer.status == 0 and len(answer.data) == 5 + int.from_bytes(answer.data[1:5], "big")
    is_compressed = answer.data[0] == 1
    assert not is_compressed or answer.headers["grpc-encoding"] == "gzip"
    return gzip.decompress(answer.data[5:]) if is_compressed else answer.data[5:], is_compressed


@pytest.mark.parametrize("is_sent_compressed", [False, True], ids=["plain", "gzip"])
def test_flags_headers_and_bodies_agree(server: ServerProcess, is_sent_compressed: bool) -> None:
    for rows in SIZES:
        body, headers = framed(predict(rows)), {}
        if is_sent_compressed:
            body, headers = packed(predict(rows)), {"grpc_encoding": "gzip"}
        with H2Client(server.grpc_port) as client:
            answers = []
            for more in ({}, {"x_response_encoding": "gzip"}):
                stream = client.begin(**headers, **more)
                client.send(stream, body)
                answers.append(unpacked(client.answer(stream)))
        (expected, is_first_compressed), (found, is_compressed) = answers
        assert found == expected and expected[:3] != b"\x1f\x8b\x08" and not is_first_compressed
        assert is_compressed


def test_many_answers_at_a_time_are_compressed_once(server: ServerProcess) -> None:
    # With a field that PredictRequest does not have: protobuf ignores it, and the core forwards the request for it.
    bodies = [predict(rows) + more for rows in (1, 64, 3000) for more in (b"", b"\x78\x01")]
    expected = [server.channel.unary_unary(PREDICT)(body, timeout=PATIENCE_S) for body in bodies]

    def send(seed: int) -> None:
        source = random.Random(seed)
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary(PREDICT)
            for _ in range(60):
                one = source.randrange(len(bodies))
                metadata = (("x-response-encoding", "gzip"),) if source.random() < 0.8 else ()
                options: dict[str, Any] = {"metadata": metadata, "timeout": PATIENCE_S}
                if source.random() < 0.5:
                    options["compression"] = grpc.Compression.Gzip
                if source.random() < 0.1:
                    call.future(bodies[one], **options).cancel()
                    continue
                found, rpc = call.with_call(bodies[one], **options)
                assert found == expected[one], (found[:8], rpc.initial_metadata(), rpc.trailing_metadata())

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(send, range(8)))


# Accept-Encoding of a request -> the compression of a large JSON answer, of a large binary one that compression makes
# much smaller, and of a small JSON one.
ACCEPTED: dict[str | None, tuple[str | None, str | None, str | None]] = {
    None: (None, None, None),
    "gzip": ("gzip", "gzip", None),
    "gzip, deflate, br, zstd": ("gzip", None, None),
    "deflate": ("deflate", "deflate", None),
    "br": (None, None, None),
    "gzip;q=0": (None, None, None),
    "identity, gzip;q=0.5": (None, None, None),
    "br, gzip;q=0.5": ("gzip", None, None),
    "gzip, identity;q=0": ("gzip", "gzip", "gzip"),
    "*;q=0, deflate": ("deflate", "deflate", "deflate"),
}


@pytest.mark.parametrize("accepted", ACCEPTED)
def test_answers_are_compressed_for_clients_that_accept_it(server: ServerProcess, accepted: str | None) -> None:
    before = forwarded(server)
    requests_ = (lookup(30_000), infer(30_000, is_binary_answer=True), lookup(3))
    for (path, body, headers), coding in zip(requests_, ACCEPTED[accepted], strict=True):
        plain = ask(server, path, body, headers)
        more = {} if accepted is None else {"Accept-Encoding": accepted}
        found = ask(server, path, body, {**headers, **more, "Origin": "https://app.example"})
        assert found.headers.get("Content-Encoding") == coding
        assert decoded(coding, found.body) == plain.body
        length = "Inference-Header-Content-Length"
        assert found.headers.get(length) == plain.headers.get(length)
        is_json_of_size = length not in found.headers and len(plain.body) >= 32 << 10
        varies = found.headers.get_all("Vary")
        assert varies == ["Origin"] + ["Accept-Encoding"] * (coding is not None or is_json_of_size)
    assert forwarded(server) - before == 1


def test_libraries_decode_what_they_accept(server: ServerProcess) -> None:
    path, body, _ = lookup(30_000)
    url = f"http://127.0.0.1:{server.http_port}{path}"
    plain = ask(server, path, body, {})
    by_requests = requests.post(url, gzip.compress(body), headers={"Content-Encoding": "gzip"}, timeout=PATIENCE_S)
    by_httpx = server.http.post(path, content=zlib.compress(body), headers={"Content-Encoding": "deflate"})
    for found in (by_requests, by_httpx):
        assert found.headers["Content-Encoding"] == "gzip"
        assert found.content == plain.body
    if curl := shutil.which("curl"):
        for version in ("--http1.0", "--http1.1", "--http2-prior-knowledge"):
            command = [curl, "-sS", version, "--compressed", "-d", body.decode(), url]
            done = subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
            assert done.stdout == plain.body, version


def test_pipelined_requests_are_compressed_one_by_one(server: ServerProcess) -> None:
    packed = gzip.compress(BODY)
    one = post(packed, b"content-encoding: gzip", b"accept-encoding: gzip, identity;q=0")
    plain = post(BODY)
    with connect(server) as sock, sock.makefile("rb") as stream:
        sock.sendall(one + plain + one + post(packed, b"content-encoding: gzip", CLOSE))
        codings = []
        for _ in range(4):
            assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
            headers = http.client.parse_headers(stream)
            coding = headers.get("Content-Encoding")
            found = decoded(coding, stream.read(int(headers["Content-Length"])))
            assert json.loads(found)["embeddings"] == {"user": [[1.0, 10.0], [2.0, 20.0]]}
            codings.append(coding)
    assert codings == ["gzip", None, "gzip", None]


GZIP, ZLIB = gzip.compress(BODY, mtime=0), zlib.compress(BODY)
ZEROS = bytes(6 << 20)
INVALID, EARLY = "is not valid {} data: ", "it ends early"
DATA, HEADER, LENGTH = (
    f"Error -3 while decompressing data: incorrect {part} check" for part in ("data", "header", "length")
)
# Name of a fault -> encoding, body, and the end of the error text after "The body ".
FAULTS: dict[str, tuple[str, bytes, str]] = {
    "cut": ("gzip", GZIP[:-3], INVALID + EARLY),
    "one byte": ("deflate", ZLIB[:1], INVALID + EARLY),
    "junk": ("gzip", GZIP + b"junk", INVALID + HEADER),
    "a zero": ("deflate", ZLIB + b"\0", INVALID + EARLY),
    "checksum": ("gzip", GZIP[:-8] + bytes(4) + GZIP[-4:], INVALID + DATA),
    "length": ("gzip", GZIP[:-1] + b"\1", INVALID + LENGTH),
    "plain": ("gzip", BODY, INVALID + HEADER),
    "raw deflate": ("deflate", ZLIB[2:-4], INVALID + HEADER),
    "members": ("gzip", gzip.compress(b"") * 1000 + GZIP, "consists of more than 1000 gzip members."),
    "bomb": (
        "gzip",
        gzip.compress(ZEROS),
        "decompresses to more than 100 times its size; send it less compressed, or plain.",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_invalid_data_is_refused_on_both_wires(server: ServerProcess, fault: str) -> None:
    before = forwarded(server)
    encoding, data, text = FAULTS[fault]
    text = text.format(encoding)
    http_status, grpc_status = (413, 8) if fault == "bomb" else (400, 13)
    found = ask(server, "/v1/models/default:lookup", data, {"Content-Encoding": encoding})
    assert (found.status, json.loads(found.body)) == (http_status, {"error": f"The body {text}"})
    assert found.headers.get("X-Error-Code") == {400: "INVALID_ARGUMENT", 413: "RESOURCE_EXHAUSTED"}[http_status]
    with H2Client(server.grpc_port) as client:
        for path in (PREDICT, "/tensorflow.serving.ModelService/GetModelStatus"):
            stream = client.begin(path, grpc_encoding=encoding)
            client.send(stream, b"\1" + framed(data)[1:])
            refused = client.answer(stream)
            assert (refused.status, refused.headers["grpc-message"]) == (grpc_status, f"The message {text}")
    assert forwarded(server) - before == 1


def test_sizes_are_judged_inflated(server: ServerProcess) -> None:
    noise = np.random.default_rng(1).integers(97, 123, LIMIT, np.uint8).tobytes()
    too_much = gzip.compress(noise + b"a", 1)
    assert len(too_much) < LIMIT
    found = ask(server, "/v1/models/default:lookup", too_much, {"Content-Encoding": "gzip"})
    assert (found.status, json.loads(found.body)["error"]) == (
        413,
        f"The decompressed body is over the limit of {LIMIT} bytes.",
    )
    with H2Client(server.grpc_port) as client:
        stream = client.begin(PREDICT, grpc_encoding="gzip")
        client.send(stream, b"\1" + framed(too_much)[1:])
        refused = client.answer(stream)
        assert refused.status == 8
        assert refused.headers["grpc-message"] == f"The decompressed message is over the limit of {LIMIT} bytes."


def test_encodings_that_the_server_does_not_know(server: ServerProcess) -> None:
    for encoding, shown in [("br", "'br'"), ("gzip, gzip", "'gzip, gzip'"), ("it's", '"it\'s"')]:
        found = ask(server, "/v1/models/default:lookup", BODY, {"Content-Encoding": encoding})
        text = f"Content-Encoding {shown} is not supported; send gzip, deflate or none."
        assert (found.status, json.loads(found.body)) == (400, {"error": text})
    with H2Client(server.grpc_port) as client:
        stream = client.begin(PREDICT, grpc_encoding="br")
        client.send(stream, framed(predict(1)))
        assert client.answer(stream).status == 12
        stream = client.begin(PREDICT)
        client.send(stream, packed(predict(1)))
        assert client.answer(stream).status == 13
        # As in other servers, a compressed message of no bytes is empty.
        stream = client.begin(PREDICT, grpc_encoding="gzip")
        client.send(stream, b"\1\0\0\0\0")
        assert client.answer(stream).headers["grpc-message"] == "Missing ModelSpec"


def held(server: ServerProcess) -> float:
    """Returns how many bytes the requests to the model hold, according to the metrics."""
    family = read_exposition(server.http.get("/metrics").text)["embedding_server_in_flight_bytes"]
    return family.value(model="default") if {"model": "default"} in family.labelled() else 0.0


def test_a_flood_of_bombs_leaves_others_served_and_no_bytes_held(server: ServerProcess) -> None:
    bomb = gzip.compress(bytes(LIMIT))
    bodies = [
        post(bomb, CLOSE, b"content-encoding: gzip"),
        post(gzip.compress(b"") * 900, CLOSE, b"content-encoding: gzip"),
        post(gzip.compress(b" " * (3 << 20) + BODY), CLOSE, b"content-encoding: gzip"),
        LOOKUP + b"content-encoding: gzip\r\ncontent-length: 100000\r\n\r\n" + bomb[:5000],
    ]
    statuses: list[int] = []

    def flood(number: int) -> None:
        for one in bodies[:3]:
            statuses.append(status(answer(server, one)))
        with connect(server) as sock:
            sock.sendall(bodies[3])
            sock.shutdown(socket.SHUT_WR)
            statuses.append(status(sock.recv(1 << 16)))

    threads = [threading.Thread(target=flood, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        assert server.lookup({"user": [1]}) == {"user": [[1.0, 10.0]]}
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(statuses) == 32 and set(statuses) <= {200, 400, 413, 503}
    until(lambda: held(server) < 1 << 20)
