"""The error names the first fault of a JSON tensor in the order in which TensorFlow Serving reads it."""

from __future__ import annotations

from typing import Any

import pytest

from service.errors import MalformedPayload, ServiceError
from service.types import SignatureSpec, TensorSpec
from service.wire.json_refusals import from_base64, refuse_columns, refuse_rows


def spec(**dtypes: str) -> SignatureSpec:
    """Returns a signature with these inputs; "?" behind a dtype makes one optional."""
    inputs = {
        name: TensorSpec(name, dtype.rstrip("?"), None, f"{name}:0", is_optional=dtype.endswith("?"))
        for name, dtype in dtypes.items()
    }
    return SignatureSpec("s", "predict", "", inputs, {})


@pytest.mark.parametrize(
    ("instances", "text"),
    [
        ([1, "a"], 'item 1: JSON Value: "a" Type: String is not of expected type: float'),
        ([[1], [[1]]], "item 1: Expecting shape [1] but got: [1,1]"),
        ([[1, 2], [1]], "item 1: Expecting tensor size: 2 but got: 1"),
        ([[[1], [1, 2]]], "item 0: Encountered list at unexpected size: 2 at level: 1 expected size: 1"),
    ],
)
def test_the_first_of_several_rows_that_is_wrong(instances: list[Any], text: str) -> None:
    item, _, fault = text.removeprefix("item ").partition(": ")
    with pytest.raises(MalformedPayload) as caught:
        refuse_rows([*instances, None], spec(x="float32"))
    start = f"Failed to process element: {item} of 'instances' list. Error: INVALID_ARGUMENT: "
    assert caught.value.message == start + fault


def test_what_has_no_fault_passes() -> None:
    refuse_rows([[1, 2.5], [3, 4]], spec(x="float32"))
    refuse_rows([{"x": True}, {"x": False, "y": "t"}], spec(x="bool", y="string?"))
    refuse_columns({"x": [[1], [255]], "z": None}, spec(x="uint8"))
    refuse_columns([["a", {"b64": "AA=="}]], spec(x="string"))


@pytest.mark.parametrize(
    ("inputs", "dtype", "text"),
    [
        ([1, 256], "uint8", "JSON Value: 256 Type: Number is not of expected type: uint8"),
        ([[1], [2.0]], "int64", "JSON Value: 2.0 Type: Number is not of expected type: int64"),
        ([True, 0], "bool", "JSON Value: 0 Type: Number is not of expected type: bool"),
        ([1, True], "float32", "JSON Value: true Type: True is not of expected type: float"),
        (["a", 1], "string", "JSON Value: 1 Type: Number is not of expected type: string"),
        ([1], "complex64", "Conversion of JSON Value: 1 to type: complex64"),
    ],
)
def test_values_of_another_type(inputs: Any, dtype: str, text: str) -> None:
    with pytest.raises(ServiceError) as caught:
        refuse_columns(inputs, spec(x=dtype))
    assert caught.value.message == text


def test_a_nest_deeper_than_any_graph_takes_ends_in_words_of_ours() -> None:
    nest: Any = 1
    for _ in range(900):
        nest = [nest]
    with pytest.raises(MalformedPayload, match="nested over 200 deep"):
        refuse_columns(nest, spec(x="float32"))


@pytest.mark.parametrize("text", ["AP8=", "AP8", " A\nP8= "])
def test_base64_with_and_without_padding(text: str) -> None:
    assert from_base64({"b64": text}) == b"\x00\xff"
