"""Receivers and their builders give model_fn the features that clients send."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from model_export.estimator.receivers import (
    ServingInputReceiver,
    TensorServingInputReceiver,
    build_parsing_serving_input_receiver_fn,
    build_raw_serving_input_receiver_fn,
)
from model_export.tensorflow_setup import tf

pytestmark = pytest.mark.tf


@pytest.fixture(autouse=True)
def graph() -> Iterator[Any]:
    """A v1 graph."""
    with tf.Graph().as_default() as graph:
        yield graph


def test_single_tensors_get_names() -> None:
    tensor = tf.constant([1.0])
    receiver = ServingInputReceiver(tensor, tensor, {"other": tensor})
    assert receiver == ({"feature": tensor}, {"input": tensor}, {"other": {"input": tensor}})
    assert TensorServingInputReceiver(tensor, {"x": tensor}) == (tensor, {"x": tensor}, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, {}), "features must be defined."),
        (({}, None), "receiver_tensors must be defined."),
        (({"a": 3}, {}), "feature a must be a Tensor, SparseTensor, or RaggedTensor."),
        (({}, {3: None}), "receiver_tensor keys must be strings: 3."),
        (({}, {}, 3), "receiver_tensors_alternatives must be a dict: 3."),
    ],
)
def test_a_receiver_refuses(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ServingInputReceiver(*arguments)
    if arguments[0] is None or arguments[0] == {"a": 3}:
        with pytest.raises(ValueError):
            TensorServingInputReceiver(*arguments)


def test_a_parsing_receiver_parses_examples() -> None:
    receiver = build_parsing_serving_input_receiver_fn({"a": tf.io.VarLenFeature(tf.int64)}, 2)()
    assert set(receiver.receiver_tensors) == {"examples"}
    assert receiver.receiver_tensors["examples"].shape == [2]
    ids = [[1, 2], []]
    examples = [
        tf.train.Example(
            features=tf.train.Features(feature={"a": tf.train.Feature(int64_list=tf.train.Int64List(value=row))})
        ).SerializeToString()
        for row in ids
    ]
    with tf.compat.v1.Session() as session:
        parsed = session.run(receiver.features["a"], {receiver.receiver_tensors["examples"]: examples})
    assert parsed.values.tolist() == [1, 2] and parsed.dense_shape.tolist() == [2, 2]


def test_a_raw_receiver_has_an_input_per_feature() -> None:
    features = {"a": np.zeros([7, 3], np.float32), "b": tf.TensorSpec([None], tf.int64)}
    receiver = build_raw_serving_input_receiver_fn({"b": features["b"], "a": tf.constant(features["a"])})()
    assert receiver.features == receiver.receiver_tensors
    shapes = {name: (tensor.dtype, tensor.shape.as_list()) for name, tensor in receiver.features.items()}
    assert shapes == {"a": (tf.float32, [None, 3]), "b": (tf.int64, [None])}
    fixed = build_raw_serving_input_receiver_fn({"b": features["b"]}, 5)()
    assert fixed.features["b"].shape == [5]
