"""Predict requests and answers, also those of searches, are read and written."""

from __future__ import annotations

import gzip
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.artifact.protos import message_class
from service.artifact.tensor_proto import MAX_SPREAD_ELEMENTS, decode_tensor
from service.errors import InputMismatch, MalformedPayload, UnknownOutput
from service.types import ModelRef
from service.versions.neighbors import NeighborAnswer
from service.wire.neighbor_tensors import decode_search, encode_answer
from service.wire.predict_proto import decode_inputs, decode_request, encode_response


def request(**tensors: list[int]) -> Any:
    """Builds a PredictRequest of int64 vectors for model m."""
    message = message_class("tensorflow.serving.PredictRequest")()
    message.model_spec.name = "m"
    for name, values in tensors.items():
        message.inputs[name].dtype = 9
        message.inputs[name].tensor_shape.dim.add().size = len(values)
        message.inputs[name].int64_val.extend(values)
    return message


def test_a_request_is_read_without_its_signature() -> None:
    message = request(x=[1, 2])
    message.model_spec.version.value = 0
    message.model_spec.signature_name = "s"
    message.output_filter.extend(["y", "z"])
    parsed = decode_request(message.SerializeToString())
    assert parsed.ref == ModelRef("m", 0)
    assert (parsed.signature_name, parsed.output_filter) == ("s", ("y", "z"))
    assert decode_inputs(parsed)["x"].tolist() == [1, 2]


def test_no_version_is_the_latest() -> None:
    assert decode_request(request().SerializeToString()).ref == ModelRef("m", None)


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(MalformedPayload, match="not a valid tensorflow.serving.PredictRequest message"):
        decode_request(b"\xff\xff")
    with pytest.raises(MalformedPayload, match="message: it is compressed by gzip"):
        decode_request(gzip.compress(request().SerializeToString()))


@pytest.mark.parametrize("label", ["stable", ""])
def test_a_label_is_kept_for_who_knows_labels(label: str) -> None:
    message = request()
    message.model_spec.version_label = label
    assert decode_request(message.SerializeToString()).ref == ModelRef("m", None, label)


def test_what_is_spread_is_bounded_for_all_inputs_together() -> None:
    message = request(a=[1], b=[1])
    for name in "ab":
        message.inputs[name].tensor_shape.dim[0].size = MAX_SPREAD_ELEMENTS // 2
    assert len(decode_inputs(decode_request(message.SerializeToString()))) == 2
    message.inputs["a"].tensor_shape.dim[0].size += 1
    with pytest.raises(MalformedPayload, match="elements, the limit is"):
        decode_inputs(decode_request(message.SerializeToString()))


def test_what_is_sent_is_not() -> None:
    message = message_class("tensorflow.serving.PredictRequest")()
    message.model_spec.name = "m"
    size = 2 * MAX_SPREAD_ELEMENTS
    message.inputs["x"].dtype = 10
    message.inputs["x"].tensor_shape.dim.add().size = size
    message.inputs["x"].tensor_content = b"\x01" * size
    assert decode_inputs(decode_request(message.SerializeToString()))["x"].size == size


@given(
    st.dictionaries(st.text(max_size=200), st.lists(st.floats(width=32), max_size=300), max_size=4),
    st.text(max_size=200),
    st.integers(0, 2**63 - 1),
)
def test_responses_are_the_messages_that_they_stand_for(
    values: dict[str, list[float]], name: str, version: int
) -> None:
    outputs = {key: np.array(numbers, np.float32) for key, numbers in values.items()}
    data = encode_response(outputs, model=name, version=version, signature_name=name)
    response = message_class("tensorflow.serving.PredictResponse").FromString(data)
    assert response.model_spec.name == response.model_spec.signature_name == name
    assert response.model_spec.HasField("version") and response.model_spec.version.value == version
    assert set(response.outputs) == set(outputs)
    for key, array in outputs.items():
        decoded = decode_tensor(key, response.outputs[key])
        assert np.array_equal(decoded, array, equal_nan=True)
        assert not response.outputs[key].tensor_content


TABLE = np.array(b"t", object)


def test_a_search_with_everything() -> None:
    table, query = decode_search(
        {
            "table": np.array([b"t"], object),
            "vectors": np.array([[1, 2]], np.float64),
            "k": np.array([3], np.int32),
            "metric": np.array(b"cosine", object),
            "feature": np.array(b"f", object),
            "filter_ids": np.array([1], np.int32),
            "filter_keys": np.array([b"a"], object),
            "exclude_ids": np.array([2]),
            "exclude_keys": np.array([7]),
            "include_self": np.array(True),
        }
    )
    assert (table, query.k, query.metric, query.feature, query.include_self) == ("t", 3, "cosine", "f", True)
    assert query.vectors is not None and query.vectors.dtype == np.float32
    assert (query.allowed.size, query.denied.size) == (2, 2)
    assert query.allowed.ids is not None and query.allowed.ids.dtype == np.int64


def test_defaults_are_those_of_json() -> None:
    _, query = decode_search({"table": TABLE, "ids": np.array([1, 2], np.int32)})
    assert (query.k, query.metric, query.include_self, query.wants_labels) == (10, "dot", False, False)
    assert query.rows.ids is not None and query.rows.ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ({"ids": np.array([1])}, 'input "table" is missing. Its inputs are: table, ids,'),
        ({"table": TABLE, "id": np.array([1])}, "unknown inputs: id. Its inputs are"),
        ({"table": TABLE}, 'send one of "ids", "keys", "vectors" and "labels"'),
        ({"table": TABLE, "ids": np.array([1]), "keys": np.array([1])}, 'send one of "ids"'),
        (
            {"table": TABLE, "ids": np.array(1)},
            'input "ids": got int64 of rank 0, signature "neighbors" takes int32 or',
        ),
        ({"table": TABLE, "ids": np.array([1.0])}, 'input "ids": got float64 of rank 1'),
        ({"table": np.array(3), "ids": np.array([1])}, 'input "table": got int64 of rank 0'),
        ({"table": TABLE, "ids": np.array([1]), "k": np.array([1, 2])}, 'input "k": got int64 of rank 1'),
        ({"table": TABLE, "ids": np.array([1]), "metric": np.array(b"ip", object)}, "expected one of: dot, cosine, l2"),
    ],
)
def test_what_is_wrong_is_named(inputs: dict[str, Any], text: str) -> None:
    with pytest.raises(InputMismatch) as caught:
        decode_search(inputs)
    assert text in caught.value.message


def test_keys_are_strings_whatever_the_vocabulary() -> None:
    answer = NeighborAnswer(np.array([[3, -1]]), np.array([[1, np.nan]], np.float32), None, 1, 4)
    assert list(encode_answer(answer)) == ["ids", "scores"]
    for key, text in ((b"x", b"x"), (-7, b"-7")):
        keys = np.array([[key, None]], object)
        assert encode_answer(answer._replace(keys=keys))["keys"].tolist() == [[text, b""]]
    assert list(encode_answer(answer, ("scores",))) == ["scores"]
    with pytest.raises(UnknownOutput, match="keys Outputs expected to be in the set {ids,scores}"):
        encode_answer(answer, ("keys",))
