"""The inputs of a predict signature, converted for a Keras model, and the tf.Module that is saved for the model.

Ids have the input names of a lookup (`<feature>`, or `<feature>__values` and `<feature>__row_splits`). Weights are the
optional input `<feature>__weights`; any other input is named by its path. In a tf.Example each of them is a field: ids
under the feature's name, weights and float inputs under the names above.

The module's variables are the model's own objects, not copies, under readable names (`tables/film`,
`dense/logits_kernel`) that the manifest refers to. A saved Keras model would number its variables and include its
optimizers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model_export.errors import ADOPT_IT, ExportError
from model_export.graphs.lookup_graph import rows_of_keys, with_default_weights
from model_export.graphs.source import EXAMPLES_INPUT, id_dtype, predict_entry
from model_export.layers.model_inputs import InputLeaf, ModelInputs, is_functional
from model_export.layers.to_spec import input_name
from model_export.spec.features import FeatureSpec, ModelSpec
from model_export.tensorflow_setup import tf


@dataclass(frozen=True, slots=True)
class PredictInputs:
    """The inputs of a Keras model's predict signatures, and their conversion for the model.

    feature_names: path of a feature in its layer's nest -> its name in the spec.
    """

    spec: ModelSpec
    inputs: ModelInputs
    feature_names: Mapping[str, str]

    def features(self) -> tuple[str, ...]:
        return tuple(self.feature_names[leaf.ids_of] for leaf in self.inputs.leaves if leaf.ids_of is not None)

    def optional(self) -> list[str]:
        return [self._weights_name(leaf) for leaf in self.inputs.leaves if leaf.weights_of is not None]

    def tensor_specs(self) -> dict[str, Any]:
        """Returns the TensorSpec of every signature input by name; raises ExportError for two inputs of one name."""
        specs: dict[str, Any] = {}
        for leaf in self.inputs.leaves:
            for spec in self._leaf_specs(leaf):
                if spec.name in specs:
                    raise ExportError(f"two inputs of the model become {spec.name!r}; rename a feature with names=")
                specs[spec.name] = spec
        return specs

    def dense_fields(self) -> dict[str, int]:
        """Returns the name and length of each float field in the tf.Examples that a predict signature takes.

        Raises:
          ExportError: an input does not have a fixed number of floats, so no field can hold it.
        """
        fields = {}
        for leaf in self.inputs.leaves:
            if leaf.ids_of is None and leaf.weights_of is None:
                length = leaf.type_spec.shape[1:].num_elements()
                if leaf.kind != "dense" or leaf.type_spec.dtype != tf.float32 or length is None:
                    raise ExportError(
                        f"input {leaf.path!r} is {leaf.type_spec}; a tf.Example carries float32 of a fixed length"
                    )
                fields[input_name(leaf.path)] = int(length)
        return fields

    def model_inputs(self, tensors: Mapping[str, Any], vocabularies: Mapping[str, Any]) -> Any:
        """Converts a signature's input tensors to the nest (dicts and lists) with which the Keras model is called."""
        return self.inputs.pack([self._leaf_value(leaf, tensors, vocabularies) for leaf in self.inputs.leaves])

    def parsed(self, examples: Any) -> dict[str, Any]:
        """Parses serialized tf.Examples to the signature's input tensors.

        A missing field of ids is an empty row, or an error for a feature of one id per row. A missing float field is an
        error.
        """
        fields: dict[str, Any] = {}
        for leaf in self.inputs.leaves:
            if leaf.ids_of is not None:
                fields[self._feature(leaf).name] = self._ids_field(leaf)
            elif leaf.weights_of is not None:
                fields[self._weights_name(leaf)] = tf.io.RaggedFeature(tf.float32, row_splits_dtype=tf.int64)
        dense = self.dense_fields()
        fields |= {name: tf.io.FixedLenFeature([length], tf.float32) for name, length in dense.items()}
        found = tf.io.parse_example(examples, fields)
        tensors = {}
        for leaf in self.inputs.leaves:
            if leaf.ids_of is not None:
                feature = self._feature(leaf)
                ids = found[feature.name]
                tensors[feature.ids_input] = ids.values if feature.is_ragged else ids
                if feature.row_splits_input is not None:
                    tensors[feature.row_splits_input] = ids.row_splits
            elif leaf.weights_of is not None:
                tensors[self._weights_name(leaf)] = found[self._weights_name(leaf)].values
            else:
                name, shape = input_name(leaf.path), leaf.type_spec.shape[1:].as_list()
                tensors[name] = tf.reshape(found[name], [-1, *shape])
        return tensors

    def _feature(self, leaf: InputLeaf) -> FeatureSpec:
        path = leaf.ids_of if leaf.ids_of is not None else leaf.weights_of
        assert path is not None  # callers check this
        return self.spec.feature(self.feature_names[path])

    def _weights_name(self, leaf: InputLeaf) -> str:
        feature = self._feature(leaf)
        if feature.weights_input is None:
            raise ExportError(f"input {leaf.path!r} weighs feature {feature.name!r}, whose ids are not combined")
        return feature.weights_input

    def _ids_field(self, leaf: InputLeaf) -> Any:
        feature = self._feature(leaf)
        dtype = tf.as_dtype(id_dtype(feature, None))
        return (
            tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
            if feature.is_ragged
            else tf.io.FixedLenFeature([], dtype)
        )

    def _leaf_specs(self, leaf: InputLeaf) -> list[Any]:
        if leaf.ids_of is not None:
            feature = self._feature(leaf)
            specs = [tf.TensorSpec([None], tf.as_dtype(id_dtype(feature, None)), feature.ids_input)]
            if feature.row_splits_input is not None:
                specs.append(tf.TensorSpec([None], tf.int64, feature.row_splits_input))
            return specs
        if leaf.weights_of is not None:
            return [tf.TensorSpec([None], tf.float32, self._weights_name(leaf))]
        if leaf.kind != "dense":
            raise ExportError(
                f"input {leaf.path!r} of the model is {leaf.kind} and feeds no feature; say which with feature_inputs "
                f"or weight_inputs; {ADOPT_IT}"
            )
        return [tf.TensorSpec(leaf.type_spec.shape, leaf.type_spec.dtype, input_name(leaf.path))]

    def _leaf_value(self, leaf: InputLeaf, tensors: Mapping[str, Any], vocabularies: Mapping[str, Any]) -> Any:
        if leaf.ids_of is None and leaf.weights_of is None:
            return tensors[input_name(leaf.path)]
        feature = self._feature(leaf)
        if leaf.ids_of is not None:
            values = _model_ids(leaf, feature, tensors[feature.ids_input], vocabularies)
        else:
            name = self._weights_name(leaf)
            entry = predict_entry(self.spec, [feature.name], [name])
            values = with_default_weights(entry.features[feature.name], tensors)
        if feature.row_splits_input is None:
            return values[:, None] if leaf.type_spec.shape.rank == 2 else values
        splits = tensors[feature.row_splits_input]
        ragged = tf.RaggedTensor.from_row_splits(values, splits, validate=True)
        return ragged.to_sparse() if leaf.kind == "sparse" else ragged


def _model_ids(leaf: InputLeaf, feature: FeatureSpec, ids: Any, vocabularies: Mapping[str, Any]) -> Any:
    takes_keys = leaf.lookup is not None or leaf.type_spec.dtype == tf.string
    if takes_keys and ids.dtype == leaf.type_spec.dtype:
        return ids
    if takes_keys:
        raise ExportError(
            f"the model takes {leaf.type_spec.dtype.name} keys of feature {feature.name!r}, its vocabulary has "
            f"{ids.dtype.name}; give that one with vocabularies="
        )
    rows = rows_of_keys(feature, ids, vocabularies[feature.name]) if feature.name in vocabularies else ids
    dtype = leaf.type_spec.dtype
    if dtype.size < rows.dtype.size:
        # Clip before the cast, so that an id beyond int32 stays outside the table, instead of wrapping to another row.
        rows = tf.clip_by_value(rows, tf.constant(dtype.min, rows.dtype), tf.constant(dtype.max, rows.dtype))
    return tf.cast(rows, dtype)


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
        """Keeps references to the model's variables and lookup tables that functions read, so that they are saved."""
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
