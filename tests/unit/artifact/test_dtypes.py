"""Names of dtypes are TensorFlow's own."""

from __future__ import annotations

import pytest

from service.artifact import tensor_proto


def test_names_and_numbers_are_each_other_s_inverse() -> None:
    for number in range(1, 34):
        assert tensor_proto.dtype_number(tensor_proto.dtype_name(number)) == number


def test_unknown_numbers_are_invalid() -> None:
    assert tensor_proto.dtype_name(0) == tensor_proto.dtype_name(99) == "invalid"


@pytest.mark.tf
def test_names_are_tensorflow_s() -> None:
    import tensorflow as tf
    from tensorflow.core.framework import types_pb2

    for proto_name, number in types_pb2.DataType.items():
        if proto_name == "DT_INVALID" or number > 100:
            continue
        ours = tensor_proto.dtype_name(number)
        assert ours == tf.as_dtype(number).name, proto_name
        assert tensor_proto.proto_name(ours) == proto_name
