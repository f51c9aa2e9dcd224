"""Defines the inputs of an exported model: the receivers of tf.estimator.export and the functions that build them.

Source: tensorflow_estimator/python/estimator/export/export.py at 2.15.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from model_export.tensorflow_setup import tf


class _Receiver(NamedTuple):
    features: Any
    receiver_tensors: dict[str, Any]
    receiver_tensors_alternatives: dict[str, dict[str, Any]] | None


class ServingInputReceiver(_Receiver):
    """The inputs of an exported model, as a serving_input_receiver_fn returns them.

    Args:
      features: model_fn's features: name -> tensor, sparse or ragged tensor; a single tensor becomes {"feature":
          tensor}.
      receiver_tensors: the clients' inputs: name -> placeholder; a single placeholder gets the name "input".
      receiver_tensors_alternatives: name -> other receiver tensors that may be fed instead; each becomes a signature.

    Raises:
      ValueError: there are no features or tensors, a name is no string, or a value is no tensor.
    """

    __slots__ = ()

    def __new__(
        cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None
    ) -> ServingInputReceiver:
        return super().__new__(
            cls,
            _named_tensors(features, "feature", "feature", allow_ints=True),
            _named_tensors(receiver_tensors, "receiver_tensor", "input"),
            _alternatives(receiver_tensors_alternatives),
        )


class TensorServingInputReceiver(_Receiver):
    """The inputs of an exported model whose model_fn takes one tensor as `features`, not a dict."""

    __slots__ = ()

    def __new__(
        cls, features: Any, receiver_tensors: Any, receiver_tensors_alternatives: Any = None
    ) -> TensorServingInputReceiver:
        if features is None:
            raise ValueError("features must be defined.")
        _check_tensor(features, "feature")
        return super().__new__(
            cls,
            features,
            _named_tensors(receiver_tensors, "receiver_tensor", "input"),
            _alternatives(receiver_tensors_alternatives),
        )


def build_parsing_serving_input_receiver_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a serving_input_receiver_fn with the one input "examples": [B] string, serialized tf.Examples.

    Args:
      feature_spec: the argument `features` of tf.io.parse_example.
      default_batch_size: B; None: any number of rows.
    """

    def serving_input_receiver_fn() -> ServingInputReceiver:
        examples = tf.compat.v1.placeholder(tf.string, [default_batch_size], "input_example_tensor")
        return ServingInputReceiver(tf.io.parse_example(examples, feature_spec), {"examples": examples})

    return serving_input_receiver_fn


def build_raw_serving_input_receiver_fn(
    features: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], ServingInputReceiver]:
    """Returns a serving_input_receiver_fn with one input for each feature of the model.

    Args:
      features: name -> tensor or tf.TensorSpec with the input's dtype and shape; the first dimension becomes B.
      default_batch_size: B; None: any number of rows.
    """
    specs = {name: (tensor.dtype, tensor.shape[1:]) for name, tensor in features.items()}

    def serving_input_receiver_fn() -> ServingInputReceiver:
        tensors = {
            name: tf.compat.v1.placeholder(dtype, [default_batch_size, *row], name)
            for name, (dtype, row) in specs.items()
        }
        return ServingInputReceiver(tensors, tensors)

    return serving_input_receiver_fn


def _alternatives(alternatives: Any) -> dict[str, dict[str, Any]] | None:
    if alternatives is None:
        return None
    if not isinstance(alternatives, dict):
        raise ValueError(f"receiver_tensors_alternatives must be a dict: {alternatives}.")
    return {
        name: _named_tensors(tensors, "receiver_tensors_alternative", "input") for name, tensors in alternatives.items()
    }


def _named_tensors(tensors: Any, what: str, single: str, *, allow_ints: bool = False) -> dict[str, Any]:
    if tensors is None:
        raise ValueError(f"{what}s must be defined.")
    if not isinstance(tensors, Mapping):
        tensors = {single: tensors}
    for name, tensor in tensors.items():
        if not isinstance(name, (str, int) if allow_ints else str):
            raise ValueError(f"{what} keys must be strings: {name}.")
        _check_tensor(tensor, f"{what} {name}")
    return dict(tensors)


def _check_tensor(tensor: Any, what: str) -> None:
    if not isinstance(tensor, (tf.Tensor, tf.SparseTensor, tf.RaggedTensor)):
        raise ValueError(f"{what} must be a Tensor, SparseTensor, or RaggedTensor.")
