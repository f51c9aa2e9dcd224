"""The limits on ids of `:rows` and on the size of an answer hold on each wire, to the row.

No model here takes more than kilobytes: the server's limit on answers is small.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from service.artifact.protos import message_class
from service.wire.api import DEFAULT_MAX_TABLE_ROWS
from tests.conformance.conftest import wires_of_server
from tests.conformance.contract_calls import METHODS
from tests.conformance.test_examples import Features, grpc_request, write_model
from tests.conformance.wires import WIRES, Failure, HttpClient, Request, Wire
from tests.conftest import MakeOnce
from tests.integration.process import ServerProcess, server_of

# Bytes of an answer, and the rows of the table "user" of the toy model in as many: each has two numbers of 4 bytes.
LIMIT = 2048
MOST_ROWS = LIMIT // 8
ROWS = "/v1/models/toy/tables/user:rows"


def too_large(size: int, rows: int) -> str:
    """Returns the text of an answer that is too large."""
    return (
        f"The answer would hold {size} bytes for {rows} rows, this server's limit is {LIMIT} bytes; send fewer rows "
        "per request."
    )


@pytest.fixture(scope="module")
def server(toy_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Starts a server of the toy model whose answers may have LIMIT bytes."""
    folder = tmp_path_factory.mktemp("limits")
    with server_of({"toy": toy_model}, folder, max_response_bytes=LIMIT, graph_signatures="off") as running:
        yield running


@pytest.fixture(scope="module")
def wires(server: ServerProcess) -> dict[str, Wire]:
    """Makes a client of the server for every wire, by name."""
    return wires_of_server(server)


@pytest.mark.parametrize("wire_name", WIRES)
def test_a_lookup_may_fill_its_answer_and_no_more(wires: dict[str, Wire], wire_name: str) -> None:
    wire = wires[wire_name]
    assert wire.send(Request("lookup", {"user": [1] * MOST_ROWS}))["user"].shape == (MOST_ROWS, 2)
    with pytest.raises(Failure) as caught:
        wire.send(Request("lookup", {"user": [1] * (MOST_ROWS + 1)}))
    assert caught.value.code == wire.code("RESOURCE_EXHAUSTED")
    assert caught.value.text == too_large(LIMIT + 8, MOST_ROWS + 1)


def test_rows_of_a_table_may_fill_their_answer_and_no_more(server: ServerProcess) -> None:
    http = HttpClient(server.http)
    status, answer = http.post(ROWS, f'{{"ids": {[1] * MOST_ROWS}}}')
    assert (status, len(answer["rows"])) == (200, MOST_ROWS)
    status, answer = http.post(ROWS, f'{{"ids": {[1] * (MOST_ROWS + 1)}}}')
    assert (status, answer) == (413, {"error": too_large(LIMIT + 8, MOST_ROWS + 1)})


def test_ids_of_a_table_are_bounded_before_the_answer_is(server: ServerProcess) -> None:
    http = HttpClient(server.http)
    for count, status, text in (
        (DEFAULT_MAX_TABLE_ROWS + 1, 400, 'input "ids": 65537 ids, the limit is 65536 per request.'),
        (DEFAULT_MAX_TABLE_ROWS, 413, too_large(8 * 65536, 65536)),
    ):
        for more in ("", ', "labels": false'):
            body = f'{{"ids": {[1] * count}{more}}}'
            assert http.post(ROWS, body) == (status, {"error": text})


def test_as_many_ids_as_may_be_are_read(shared_core: ServerProcess) -> None:
    status, answer = HttpClient(shared_core.http).post(ROWS, f'{{"ids": {[1] * DEFAULT_MAX_TABLE_ROWS}}}')
    assert (status, len(answer["rows"])) == (200, DEFAULT_MAX_TABLE_ROWS)


@pytest.fixture(scope="module", params=["alone", "batched"])
def examples_server(
    request: pytest.FixtureRequest, tf: Any, make_once: MakeOnce, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """Starts a server, once with batching, of the model of test_examples, whose answers may have LIMIT bytes."""
    base = make_once("examples", lambda folder: write_model(tf, folder / "1"))
    flags = ("--enable_batching",) if request.param == "batched" else ()
    with server_of({"m": base}, tmp_path_factory.mktemp("list"), *flags, max_response_bytes=LIMIT) as running:
        yield running


# Each of these Examples gets five scores of 4 bytes, and five labels: its own text three times, and "1,2" twice.
TEXT = "x" * 100
EXAMPLE: Features = {"i": [1, 2], "b": [TEXT]}
EXAMPLE_BYTES = 5 * 4 + 3 * len(TEXT) + 2 * len("1,2")
MOST_EXAMPLES = LIMIT // EXAMPLE_BYTES


@pytest.mark.tf
@pytest.mark.parametrize("call", ["classify", "multi", "regress"])
def test_examples_may_fill_their_answer_and_no_more(examples_server: ServerProcess, call: str) -> None:
    size, most = (4, LIMIT // 4) if call == "regress" else (EXAMPLE_BYTES, MOST_EXAMPLES)
    method, _, response_type = METHODS[call]
    run = examples_server.channel.unary_unary(f"/tensorflow.serving.PredictionService/{method}")
    data = run(grpc_request(call, [EXAMPLE] * most, None), timeout=60)
    assert message_class(f"tensorflow.serving.{response_type}").FromString(data).ByteSize() > 0
    with pytest.raises(grpc.RpcError) as caught:
        run(grpc_request(call, [EXAMPLE] * (most + 1), None), timeout=60)
    text = too_large(size * (most + 1), most + 1)
    assert (caught.value.code().name, caught.value.details()) == ("RESOURCE_EXHAUSTED", text)
    if call == "multi":
        return
    http = HttpClient(examples_server.http)
    for count, expected in ((most, 200), (most + 1, 413)):
        example = f'{{"i": [1, 2], "b": "{TEXT}"}}'
        body = f'{{"signature_name": "{call}", "examples": [{", ".join([example] * count)}]}}'
        status, answer = http.post(f"/v1/models/m:{call}", body)
        assert status == expected
        if status != 200:
            assert answer == {"error": text}
