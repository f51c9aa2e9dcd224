"""The case table over tables of every kind of numbers: the same answers, for the toy model's are exact in each.

int4 has no place for all of them: its answers are those of a float32 model of the numbers that it is read as.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from service.engine.engine import Engine
from tests.conformance.test_transports import CASES
from tests.conformance.wires import (
    EngineWire,
    Failure,
    GrpcWire,
    HttpWire,
    Request,
    Wire,
    grpc_channel,
    http_client,
    takes,
)
from tests.conftest import RecordingObserver, serving
from tests.stored_tables import DTYPES
from tests.toy_model import toy_tables_as, write_toy_model

TOY_CASES = [case for case in CASES if Request(**case["request"]).model == "toy"]
WIRES = ("engine", "http :lookup", "grpc")


@pytest.fixture(scope="module", params=[dtype for dtype in DTYPES if dtype != "float32"])
def few_bits(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yields wires over the toy model with tables of another dtype, and a client of its HTTP interface."""
    base = tmp_path_factory.mktemp(request.param)
    write_toy_model(base / "1", dtype=request.param)
    exact = tmp_path_factory.mktemp("exact")
    write_toy_model(exact / "1", tables=toy_tables_as(request.param))
    expected = EngineWire(Engine(serving(exact), RecordingObserver()))
    engine = Engine(serving(base), RecordingObserver())
    with http_client(engine) as http, grpc_channel(engine) as channel:
        wires: dict[str, Wire] = {
            "engine": EngineWire(engine),
            "http :lookup": HttpWire(http, "lookup"),
            "grpc": GrpcWire(channel),
        }
        yield request.param, wires, http, expected


@pytest.mark.parametrize("case", TOY_CASES, ids=[case["name"] for case in TOY_CASES])
def test_case(few_bits: Any, case: dict[str, Any]) -> None:
    dtype, wires, _, exact = few_bits
    request = Request(**case["request"])
    for name in WIRES:
        if not takes(name, request) or "error" in case:
            continue
        outputs = wires[name].send(request)
        assert outputs.keys() == case["outputs"].keys()
        told = case["outputs"] if dtype != "int4" or not takes("engine", request) else exact.send(request)
        for output, expected in told.items():
            # Nested lists of zero rows lack the width of a row, so the expected array gets the shape of the answer.
            wanted = np.array(expected, np.float32).reshape(outputs[output].shape)
            np.testing.assert_allclose(outputs[output], wanted, rtol=1e-6, err_msg=f"{name} {output}")


def test_the_same_requests_are_refused(few_bits: Any) -> None:
    _, wires, _, _ = few_bits
    for case in TOY_CASES:
        if "error" in case and takes("engine", Request(**case["request"])):
            with pytest.raises(Failure):
                wires["engine"].send(Request(**case["request"]))


def test_tables_and_their_rows_are_told_and_read(few_bits: Any) -> None:
    dtype, _, http, _ = few_bits
    status, answer = http.request("GET", "/v1/models/toy/tables")
    assert status == 200
    told = {table["name"]: table for table in answer["tables"]}
    assert told["tag"]["dtype"] == dtype
    assert told["tag"]["nbytes"] == {"int8": 12 + 4 * 4, "int4": 4 * 2 + 4 * 4}.get(dtype, 24)
    status, answer = http.post("/v1/models/toy/tables/tag:rows", '{"ids": [3, 1]}')
    assert status == 200
    # The JSON answer has only as many digits as a float32 needs.
    assert np.array(answer["rows"], np.float32).tolist() == toy_tables_as(dtype)["tag"][[3, 1]].tolist()
