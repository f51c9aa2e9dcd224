"""The client makes JSON bodies that the decoders of the reference server read back."""

from __future__ import annotations

import json

import numpy as np
import pytest

from embedding_client.errors import InvalidRequest
from embedding_client.http_bodies import lookup_body, predict_body, rows_body
from embedding_client.types import RaggedIds
from service.reference.http_app import LookupBody, RowsBody
from service.reference.json_tensors import parse_object, predict_inputs
from service.types import Array, SignatureSpec, TensorSpec


def decode_lookup(body: bytes) -> LookupBody:
    """Reads a lookup's body; raises if it has a key of another name, or a value of another type."""
    return LookupBody.model_validate(parse_object(body, strict=False))


def decode_x(body: bytes, dtype: str) -> Array:
    """Reads the input x of a predict's body by column, for the signature "s"."""
    document = parse_object(body, strict=False)
    assert document.keys() == {"signature_name", "inputs"} and document["signature_name"] == "s"
    spec = SignatureSpec("s", "predict", "m", {"x": TensorSpec("x", dtype, None)}, {})
    return predict_inputs({"inputs": document["inputs"]}, spec)["x"]


def test_a_lookup_is_nested_by_row() -> None:
    ragged = RaggedIds(np.array([b"a", b"\xff"], object), np.array([0, 2, 2]), np.array([0.1, 2], np.float32))
    body = decode_lookup(lookup_body({"user": np.array([1, 2], np.int32), "tags": ragged}, "lookup"))
    assert body.signature_name == "lookup"
    assert body.features == {"user": [1, 2], "tags": [["a", {"b64": "/w=="}], []]}
    # A weight has all digits of its float32, so that every reader rounds it to the same float32.
    assert body.weights == {"tags": [[0.10000000149011612, 2.0], []]}


def test_a_float32_is_the_same_again_though_the_server_rounds_twice() -> None:
    # Rounded to a double and then to a float32, the number's shortest decimal form would give the neighbouring float32.
    given = np.array([363742205], np.uint32).view(np.float32)
    read = decode_x(predict_body({"x": given}, "s"), "float32")
    assert (read.dtype, read.tobytes()) == (given.dtype, given.tobytes())


def test_weights_that_are_not_finite_are_bare_tokens() -> None:
    ragged = RaggedIds(np.array([1, 2, 3]), np.array([0, 3]), np.array([np.nan, np.inf, 1], np.float32))
    (row,) = decode_lookup(lookup_body({"tags": ragged}, "lookup")).weights["tags"]
    np.testing.assert_array_equal(row, [np.nan, np.inf, 1])


def test_a_lookup_without_rows() -> None:
    ragged = RaggedIds(np.array([], np.int64), np.array([0]))
    assert decode_lookup(lookup_body({"tags": ragged}, "x")).features == {"tags": []}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8", "bool", "string"])
def test_a_predict_goes_by_column(dtype: str) -> None:
    if dtype == "string":
        given = np.array([[b"a", b"null"], [b"", b"\xfe"]], object)
    else:
        given = (np.array([[0, 1], [7, 100]]) / 3).astype(dtype)
    np.testing.assert_array_equal(decode_x(predict_body({"x": given}, "s"), dtype), given, strict=True)


def test_scalars_and_what_is_not_finite() -> None:
    x = np.array([np.nan, np.inf, -np.inf], np.float32)
    text = predict_body({"x": x, "y": np.array(2, np.int64)}, "").decode()
    document = json.loads(text)
    assert document["inputs"]["y"] == 2
    np.testing.assert_array_equal(np.array(document["inputs"]["x"], np.float32), x)


def test_what_json_can_not_say() -> None:
    for dtype in (np.complex64, np.longdouble):
        with pytest.raises(InvalidRequest, match=f'"x": dtype {np.dtype(dtype)} has no JSON form; use gRPC'):
            predict_body({"x": np.zeros(1, dtype)}, "")


def test_rows() -> None:
    assert RowsBody.model_validate_json(rows_body(np.arange(10)[::3])).ids == [0, 3, 6, 9]
