"""The client's Open Inference requests and its reading of answers, beside those of Triton's stock client."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from embedding_client.calls import Reply
from embedding_client.errors import InvalidRequest
from embedding_client.open_inference import decode_infer, encode_infer

stock = pytest.importorskip("tritonclient.http")

DTYPES = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    "object": "BYTES",
}
SHAPES = [(), (3,), (0,), (2, 0, 3), (2, 3), (3, 700)]


def array_of(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns numbers or strings that are all different, if the dtype has so many."""
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    if dtype != "object":
        return numbers.astype(dtype)
    strings = np.empty(shape, object)
    strings.reshape(-1)[:] = [b"\xff\0" + b"x" * (number % 7) for number in range(numbers.size)]
    return strings


def parts(body: bytes, json_length: int | None) -> tuple[Any, bytes]:
    """Returns the JSON of a body, and the bytes behind it."""
    return json.loads(body[:json_length]), body[json_length or len(body) :]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_request_is_that_of_the_stock_client(dtype: str) -> None:
    arrays = {str(shape): array_of(dtype, shape) for shape in SHAPES} | {"y": np.float32([[1, 2], [3, 4]]).T}
    tensors = []
    for name, array in arrays.items():
        tensors.append(stock.InferInput(name, list(array.shape), DTYPES[array.dtype.name]))
        tensors[-1].set_data_from_numpy(array)
    outputs = [stock.InferRequestedOutput("z", binary_data=True)]
    want, binary = parts(
        *stock.InferenceServerClient.generate_request_body(tensors, outputs, parameters={"signature_name": "s"})
    )
    got, sent = parts(*encode_infer(arrays, ("z",), "s"))
    assert (got["inputs"], sent) == (want["inputs"], binary)
    assert [output["name"] for output in got["outputs"]] == ["z"]
    assert got["parameters"] == {"signature_name": "s", "binary_data_output": True}
    assert "outputs" not in parts(*encode_infer(arrays, (), "s"))[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_answer_is_read_as_the_stock_client_reads_it(dtype: str) -> None:
    arrays = {str(shape): array_of(dtype, shape) for shape in SHAPES} | {"y": np.float32([1, 2])}
    body, json_length = encode_infer(arrays, (), "s")
    body = body.replace(b'"inputs"', b'"outputs"', 1)
    # As the server does, without a header the whole answer is JSON.
    found = decode_infer(Reply(body, 4, json_length + 1))
    assert found.version == 4
    theirs = stock.InferResult.from_response_body(body, header_length=json_length + 1)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array, strict=True)
        np.testing.assert_array_equal(found[name], theirs.as_numpy(name))
        assert found[name].flags.writeable and found[name].flags.aligned


def test_an_answer_of_no_strings_has_no_length() -> None:
    body = b'{"outputs":[{"name":"x","datatype":"BYTES","shape":[0],"parameters":{"binary_data_size":0}}]}'
    assert decode_infer(Reply(body, 1))["x"].tolist() == []


@pytest.mark.parametrize(
    ("tensor", "data"),
    [
        ('"datatype":"FP32","shape":[2],"parameters":{"binary_data_size":4}', b"1234"),
        ('"datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}', b"123"),
        ('"datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}', b"12345"),
        ('"datatype":"FP7","shape":[1],"parameters":{"binary_data_size":4}', b"1234"),
        ('"datatype":"FP32","shape":[1],"data":[1.0]', b""),
        ('"datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":5}', b"\2\0\0\0a"),
        ('"datatype":"BYTES","shape":[2],"parameters":{"binary_data_size":5}', b"\1\0\0\0a"),
    ],
)
def test_an_answer_of_other_bytes_is_an_error(tensor: str, data: bytes) -> None:
    head = f'{{"outputs":[{{"name":"x",{tensor}}}]}}'.encode()
    with pytest.raises((ValueError, LookupError)):
        decode_infer(Reply(head + data, 1, len(head)))


@pytest.mark.parametrize("dtype", [np.complex64, np.longdouble])
def test_a_dtype_that_the_protocol_lacks_is_named(dtype: Any) -> None:
    with pytest.raises(InvalidRequest, match=f'"x": dtype {np.dtype(dtype)} has no Open Inference datatype; use gRPC'):
        encode_infer({"x": np.zeros(1, dtype)}, (), "s")
