"""The stock messages of tensorflow-serving-api can read the client's requests, and the client stock answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from embedding_client.calls import Where
from embedding_client.errors import InvalidRequest
from embedding_client.messages import decode_predict, encode_model_spec, encode_predict

pytestmark = pytest.mark.tf

# With so many elements, arrays of large dtypes are above the size from which the client sends an array's memory without
# a copy, and arrays of small dtypes below.
LARGE = 5000
NUMBERS = ["float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
DTYPES = [*NUMBERS, "bool", "complex64", "complex128"]


@pytest.fixture(scope="module")
def stock(tf: Any) -> Any:
    """TensorFlow Serving's own module of messages."""
    from tensorflow_serving.apis import predict_pb2

    return predict_pb2


def array_of(dtype: str, *shape: int) -> np.ndarray:
    """Returns random values of a dtype, without NaN, because NaN does not equal itself."""
    rng = np.random.default_rng(7)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if np.dtype(dtype).kind in "fc":
        return rng.normal(size=shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_arrive_in_stock_messages(tf: Any, stock: Any, dtype: str) -> None:
    shapes = [(), (3,), (0,), (2, 0, 3), (LARGE,), (2, 3, 4)]
    arrays = {str(shape): array_of(dtype, *shape) for shape in shapes}
    request = stock.PredictRequest.FromString(encode_predict(b"", arrays, ()))
    for name, array in arrays.items():
        np.testing.assert_array_equal(tf.make_ndarray(request.inputs[name]), array, strict=True)


def test_an_array_that_is_not_contiguous_arrives_in_its_own_order(tf: Any, stock: Any) -> None:
    array = np.arange(2 * LARGE).reshape(2, LARGE).T
    request = stock.PredictRequest.FromString(encode_predict(b"", {"x": array, "y": array[:3]}, ()))
    np.testing.assert_array_equal(tf.make_ndarray(request.inputs["x"]), array)
    np.testing.assert_array_equal(tf.make_ndarray(request.inputs["y"]), array[:3])


def test_strings_arrive_in_stock_messages(tf: Any, stock: Any) -> None:
    strings = np.array([[b"a", b""], [b"\0x\0", "é".encode()]], object)
    request = stock.PredictRequest.FromString(encode_predict(b"", {"x": strings}, ()))
    assert tf.make_ndarray(request.inputs["x"]).tolist() == strings.tolist()


@pytest.mark.parametrize("at", [Where(), Where(0), Where(2**63 - 1), Where(None, "stable")], ids=str)
def test_a_request_says_what_the_stock_one_says(tf: Any, stock: Any, at: Where) -> None:
    expected = stock.PredictRequest()
    expected.model_spec.name = "mövie"
    expected.model_spec.signature_name = "lookup"
    if at.version is not None:
        expected.model_spec.version.value = at.version
    if at.label is not None:
        expected.model_spec.version_label = at.label
    tensor = expected.inputs["user"]
    tensor.dtype = tf.int64.as_datatype_enum
    tensor.tensor_shape.dim.add().size = 2
    tensor.tensor_content = np.array([1, 300], np.int64).tobytes()
    expected.output_filter.extend(["user", "b"])
    request = encode_predict(encode_model_spec("mövie", at, "lookup"), {"user": np.array([1, 300])}, ("user", "b"))
    assert stock.PredictRequest.FromString(request) == expected


@pytest.mark.parametrize("version", [-1, 2**63])
def test_a_version_is_an_int64(version: int) -> None:
    with pytest.raises(InvalidRequest, match=f"version is {version}"):
        encode_model_spec("m", Where(version), "")


def test_a_dtype_that_the_message_lacks_is_named() -> None:
    with pytest.raises(InvalidRequest, match='input "x": dtype longdouble|float128 has no'):
        encode_predict(b"", {"x": np.zeros(1, np.longdouble)}, ())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("as_content", [False, True], ids=["values", "content"])
def test_stock_answers_are_read(tf: Any, stock: Any, dtype: str, as_content: bool) -> None:
    array = array_of(dtype, 100, 2)
    response = stock.PredictResponse()
    tensor = response.outputs["y"]
    tensor.CopyFrom(tf.make_tensor_proto(array))
    if not as_content:
        tensor.CopyFrom(as_values(tensor, array))
    answer = decode_predict(response.SerializeToString())["y"]
    np.testing.assert_array_equal(answer, array, strict=True)
    assert answer.flags.writeable


def as_values(tensor: Any, array: np.ndarray) -> Any:
    """Returns a copy of a TensorProto with its values in its dtype's own field, as TensorFlow Serving answers."""
    fields = {"float32": "float_val", "float64": "double_val", "int64": "int64_val", "bool": "bool_val"}
    fields |= {"uint32": "uint32_val", "uint64": "uint64_val", "float16": "half_val"}
    fields |= {"complex64": "scomplex_val", "complex128": "dcomplex_val"}
    flat = array.reshape(-1)
    if array.dtype == np.float16:
        flat = flat.view(np.uint16)
    elif array.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    twin = type(tensor)(dtype=tensor.dtype, tensor_shape=tensor.tensor_shape)
    getattr(twin, fields.get(array.dtype.name, "int_val")).extend(flat.tolist())
    return twin


def test_stock_strings_are_read(tf: Any, stock: Any) -> None:
    response = stock.PredictResponse()
    response.outputs["y"].CopyFrom(tf.make_tensor_proto([[b"a\0"], [b""]]))
    answer = decode_predict(response.SerializeToString())["y"]
    assert answer.dtype == object
    assert answer.tolist() == [[b"a\0"], [b""]]
