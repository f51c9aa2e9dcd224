"""The plain tf.Module that is saved for a layer model: its tables, other variables and signatures.

The variables are the model's own objects, not copies, under readable names (`tables/film`, `dense/logits_kernel`) that
the manifest refers to. A saved Keras model would number its variables and include its optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from model_export.errors import ExportError
from model_export.graphs.signature_names import EXAMPLES_INPUT
from model_export.layers.model_inputs import is_functional
from model_export.layers.predict_inputs import PredictInputs
from model_export.layers.to_spec import input_name
from model_export.tensorflow_setup import tf


class ServingModule(tf.Module):  # type: ignore[misc]
    """The tf.Module that an export saves: tables, vocabularies, and other variables that its signatures read."""

    def __init__(self, tables: Mapping[str, Any], vocabularies: Mapping[str, Any]) -> None:
        super().__init__()
        self.tables = dict(tables)
        self.scales: dict[str, Any] = {}
        self.vocabularies = dict(vocabularies)
        self.dense: dict[str, Any] = {}
        self.resources: list[Any] = []

    def attach(self, model: Any, functions: Sequence[Any]) -> None:
        """Keeps references to the model's variables and lookup tables that functions read, so that they are saved.

        Args:
          functions: tf.functions with an input signature.
        """
        held = {id(variable) for variable in self.tables.values()}
        for function in functions:
            for variable in function.get_concrete_function().variables:
                if id(variable) not in held:
                    held.add(id(variable))
                    self.dense[_unused(input_name(variable.name.split(":")[0]), self.dense)] = variable
        kind = tf.saved_model.experimental.TrackableResource
        self.resources = [part for part in tf.train.TrackableView(model).descendants() if isinstance(part, kind)]


def predict_function(model: Any, inputs: PredictInputs, vocabularies: Mapping[str, Any]) -> Any:
    specs = inputs.tensor_specs()
    # The Python default arguments become the signature's defaults, so that requests may leave out weights.
    defaults = {name: tf.zeros([0]) if name in inputs.optional() else None for name in specs}
    outputs = output_namer(model)

    def predict(tensors: Mapping[str, Any] = defaults) -> dict[str, Any]:
        return outputs(model(inputs.model_inputs(tensors, vocabularies)))

    return tf.function(predict, input_signature=[specs], autograph=False)


def examples_function(model: Any, inputs: PredictInputs, vocabularies: Mapping[str, Any]) -> Any:
    outputs = output_namer(model)

    def predict(examples: Any) -> dict[str, Any]:
        return outputs(model(inputs.model_inputs(inputs.parsed(examples), vocabularies)))

    return tf.function(predict, input_signature=[tf.TensorSpec([None], tf.string, EXAMPLES_INPUT)], autograph=False)


def output_namer(model: Any) -> Callable[[Any], dict[str, Any]]:
    """Returns a function that gives a model's outputs the names that Keras gives them.

    The names are a dict's keys, a functional model's output names, or output_1, output_2; in Keras 3, output_0,
    output_1 where the outputs are no dict.
    """
    declared = list(model.output_names) if is_functional(model) else []
    first = 1 if isinstance(model, tf.keras.Model) else 0

    def named(result: Any) -> dict[str, Any]:
        if isinstance(result, Mapping):
            parts = dict(result)
        else:
            flat = list(result) if isinstance(result, list | tuple) else [result]
            parts = dict(zip(declared or [f"output_{n + first}" for n in range(len(flat))], flat, strict=True))
        outputs = {input_name(str(name)): part for name, part in parts.items()}
        for name, part in outputs.items():
            if not isinstance(part, tf.Tensor):
                raise ExportError(f"output {name!r} of {model.name!r} is a {type(part).__name__}, wanted a tensor")
        return outputs

    return named


def _unused(name: str, taken: Mapping[str, Any]) -> str:
    if name not in taken:
        return name
    return next(other for number in range(1, len(taken) + 1) if (other := f"{name}_{number}") not in taken)
