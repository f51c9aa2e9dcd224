"""Both clients refuse wrong arguments in the same way."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from embedding_client.errors import InvalidRequest
from embedding_client.methods import Methods
from embedding_client.tensor_proto import float_dtype
from embedding_client.types import Outputs

METHODS = Methods("h:1", "m", None, None)
ONE: dict[str, Any] = {"version": None, "label": None, "signature": "lookup", "outputs": None}


def test_where_each_method_goes() -> None:
    assert Methods("h:1", "m", None, None).tables_target is None
    assert Methods("http://h:1", "m", None, None).tables_target is None
    methods = Methods("h:1", "m", None, "http://h:2")
    assert (str(methods.target), str(methods.tables_target)) == ("h:1", "http://h:2")


@pytest.mark.parametrize(
    ("target", "model", "http_target", "problem"),
    [
        ("h:1", "", None, "model is empty"),
        ("h:1", "m", "h:2", "expected http://host:port"),
        ("http://h:1", "m", "http://h:2", "speaks HTTP itself"),
    ],
)
def test_arguments_of_the_constructor(target: str, model: str, http_target: str | None, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Methods(target, model, None, http_target)


BITS = {"float16": [0x3C00, 0x7C00, 0x7E00], "bfloat16": [0x3F80, 0x4780, 0x7FC0]}


@pytest.mark.parametrize("name", BITS)
@pytest.mark.parametrize("target", ["h:1", "http://h:1"])
def test_the_client_rounds_what_the_server_has_not(target: str, name: str) -> None:
    if name == "bfloat16":
        pytest.importorskip("ml_dtypes")
    flow = Methods(target, "m", None, None, name).lookup({"user": [1]}, None, **ONE)
    call = next(flow)
    assert call.metadata == ((("x-tensor-encoding", name),) if target == "h:1" else ())
    asked = json.loads((call.body or b"")[: call.json_length])["parameters"] if target != "h:1" else {}
    assert asked.get("output_datatype") == {"float16": "FP16", "bfloat16": "BF16"}[name] or target == "h:1"
    half = np.ones(2, float_dtype(name))
    sent = {"x": np.array([1, 65520, np.nan], np.float32), "half": half, "exact": np.float64([1 / 3])}
    with pytest.raises(StopIteration) as end:
        flow.send(Outputs(sent, version=7))
    found = end.value.value
    assert (found.version, found["half"] is half, found["exact"] is sent["exact"]) == (7, True, True)
    assert (found["x"].dtype, found["x"].view(np.uint16).tolist()) == (half.dtype, BITS[name])


def test_a_client_asks_for_float32_by_default() -> None:
    call = next(METHODS.lookup({"user": [1]}, None, **ONE))
    assert call.metadata == ()
    call = next(Methods("http://h:1", "m", None, None).lookup({"user": [1]}, None, **ONE))
    assert "output_datatype" not in json.loads((call.body or b"")[: call.json_length])["parameters"]
    with pytest.raises(ValueError, match="float_dtype is 'int8': expected float32, float16 or bfloat16"):
        Methods("h:1", "m", None, None, "int8")


def test_a_version_or_a_label() -> None:
    with pytest.raises(InvalidRequest, match="version 1 and label 'stable' were both given"):
        METHODS.lookup({"user": [1]}, None, **ONE | {"version": 1, "label": "stable"})


def test_outputs_are_a_list() -> None:
    with pytest.raises(InvalidRequest, match="expected a list of names, got the string 'user'"):
        METHODS.predict({"user": [1]}, **ONE | {"outputs": "user"})


@pytest.mark.parametrize("ids", [5, [[1]], ["a"], [1.5], np.zeros((1, 1), int)])
def test_rows_take_a_list_of_ids(ids: Any) -> None:
    with pytest.raises(InvalidRequest, match="ids: expected a list or an array of integers"):
        METHODS.rows("t", ids, version=None, label=None)
