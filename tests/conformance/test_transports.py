"""Every wire gives the same arrays for the same request, or the same error code with the same text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import oracle
from tests.conformance.wires import OIP_WIRES, WIRES, Failure, Request, Wire, takes
from tests.toy_model import COMBINERS, toy_tables

FILES = sorted((Path(__file__).parent / "cases").glob("*.json"))
CASES: list[dict[str, Any]] = [case for file in FILES for case in json.loads(file.read_text()) if "request" in case]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(wires: dict[str, Wire], case: dict[str, Any]) -> None:
    request = Request(**case["request"])
    taken = [name for name in WIRES if takes(name, request)]
    assert taken
    for name in taken:
        check(case, request, wires[name], name)


def check(case: dict[str, Any], request: Request, wire: Wire, wire_name: str) -> None:
    """Fails unless a wire gives the answer or the error of a case."""
    if "error" in case:
        with pytest.raises(Failure) as caught:
            wire.send(request)
        assert caught.value.code == wire.code(case["error"]["code"]), wire_name
        assert case["error"].get(wire_name, case["error"]["text"]) in caught.value.text, wire_name
        return
    outputs = wire.send(request)
    assert sorted(outputs) == sorted(case["outputs"]), wire_name
    for name, rows in case["outputs"].items():
        expected = np.array(rows, np.float32)
        if wire_name in ("grpc", *OIP_WIRES):
            # Nested lists of zero rows lack the width of a row, so the case has "shapes", and a JSON answer is compared
            # without it.
            expected = expected.reshape(case.get("shapes", {}).get(name, expected.shape))
        assert outputs[name].shape == expected.shape, wire_name
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-6, err_msg=f"{name} over {wire_name}")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_names_are_used_once(file: Path) -> None:
    content = json.loads(file.read_text())
    # A call over HTTP and one over gRPC may share a name.
    names = [(case["name"], "rpc" in case) for case in content] if isinstance(content, list) else []
    assert sorted(names) == sorted(set(names))


IDS = st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=5)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=IDS, data=st.data())
def test_random_lookups_give_what_the_oracle_gives_on_every_wire(
    wires: dict[str, Wire], rows: list[list[int]], data: st.DataObject
) -> None:
    quarters = st.integers(1, 8).map(lambda n: n / 4)
    weights = [data.draw(st.lists(quarters, min_size=len(row), max_size=len(row))) for row in rows]
    request = Request("lookup", dict.fromkeys(COMBINERS, rows), dict.fromkeys(COMBINERS, weights))
    for name, wire in wires.items():
        outputs = wire.send(request)
        for feature, combiner in COMBINERS.items():
            expected = oracle.combine(toy_tables()["tag"], rows, combiner, weights=weights)
            np.testing.assert_allclose(outputs[feature], expected, rtol=1e-6, err_msg=f"{feature} over {name}")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=IDS)
def test_a_batch_equals_its_rows_sent_alone_on_every_wire(wires: dict[str, Wire], rows: list[list[int]]) -> None:
    for wire in wires.values():
        together = wire.send(Request("lookup", {"tags": rows}))["tags"]
        alone = [wire.send(Request("lookup", {"tags": [row]}))["tags"] for row in rows]
        assert np.array_equal(together, np.concatenate(alone))
