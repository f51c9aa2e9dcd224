"""TensorFlow Serving's contract on graphs: one table of calls, each sent in every form that either wire has for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.conformance.contract_calls import expected, send_grpc, send_rest, wires_of
from tests.conformance.wires import HttpClient
from tests.integration.process import ServerProcess

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "cases" / "contract.json").read_text())

pytestmark = pytest.mark.tf


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_case(contract_http: HttpClient, contract_channel: grpc.Channel, case: dict[str, Any]) -> None:
    assert wires_of(case)
    for wire in wires_of(case):
        if wire.startswith("grpc"):
            answer = send_grpc(contract_channel, case, as_content=wire == "grpc content")
        else:
            answer = send_rest(contract_http, case, wire)
        assert answer == expected(case, wire), wire


def test_a_signature_without_inputs_is_refused_over_rest_in_each_form(contract_core: ServerProcess) -> None:
    path, name = "/v1/models/half:predict", "constant"
    for form in ({"inputs": {}}, {"inputs": []}, {"inputs": 1}, {"instances": [{}]}, {"instances": [1]}, {}):
        answer = contract_core.http.post(path, json={"signature_name": name, **form})
        assert answer.status_code == 400, form
        assert answer.json() == {"error": f"Failed to get input map for signature: {name}"}
