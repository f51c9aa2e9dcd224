"""The case table over tables of every kind of numbers: the same answers, for the toy model's are exact in each.

int4 has no place for all of them: its answers are those of a float32 model of the numbers that it is read as.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.conformance.conftest import wires_of_server
from tests.conformance.test_transports import CASES
from tests.conformance.wires import Failure, HttpClient, Request, takes
from tests.integration.process import server_of
from tests.stored_tables import DTYPES
from tests.toy_model import toy_tables_as, write_toy_model

TOY_CASES = [case for case in CASES if Request(**case["request"]).model == "toy"]
WIRES = ("http :lookup", "grpc")


@pytest.fixture(scope="module", params=[dtype for dtype in DTYPES if dtype != "float32"])
def few_bits(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yields wires over the toy model with tables of another dtype, a client of its HTTP interface, and a wire of the
    same numbers as float32.
    """
    folder = tmp_path_factory.mktemp(request.param)
    write_toy_model(folder / "toy" / "1", dtype=request.param)
    write_toy_model(folder / "exact" / "1", tables=toy_tables_as(request.param))
    models = {name: folder / name for name in ("toy", "exact")}
    with server_of(models, folder, graph_signatures="off") as server:
        wires = wires_of_server(server)
        yield request.param, wires, HttpClient(server.http), wires["grpc"]


def test_answers_and_refusals_are_those_of_the_case_table(few_bits: Any) -> None:
    dtype, wires, _, exact = few_bits
    for case in TOY_CASES:
        request = Request(**case["request"])
        for name in WIRES:
            if not takes(name, request):
                continue
            if "error" in case:
                with pytest.raises(Failure):
                    wires[name].send(request)
                continue
            outputs = wires[name].send(request)
            assert outputs.keys() == case["outputs"].keys()
            told = case["outputs"] if dtype != "int4" else exact.send(replace(request, model="exact"))
            for output, expected in told.items():
                # Nested lists of zero rows lack the width of a row, so the expected array gets the answer's shape.
                wanted = np.array(expected, np.float32).reshape(outputs[output].shape)
                np.testing.assert_allclose(outputs[output], wanted, rtol=1e-6, err_msg=f"{name} {case['name']}")


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
