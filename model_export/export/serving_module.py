"""What an artifact holds: a plain tf.Module of tables, tower and vocabularies, and its signatures.

A plain module with a dict `tables` gives the variables readable names (`tables/film`), by which the manifest finds
them; a Keras model would number them, and bring its optimizer slots along.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model_export.export import lookup_signatures
from model_export.export.signature_names import (
    EXAMPLES_INPUT,
    LOOKUP,
    LOOKUP_TENSOR_CORE,
    PREDICT,
    PREDICT_EXAMPLES,
    RATING_OUTPUT,
)
from model_export.spec.features import FeatureSpec, ModelSpec
from model_export.tensorflow_setup import tf
from model_export.training.layer_model import feature_config


class ServingModule(tf.Module):  # type: ignore[misc]
    """Tables, tower, vocabularies and the four signatures.

    Args:
      tables: table name -> [V, D] variable.
      tower: has clipped(feature -> [B, D] vectors) -> [B].
      vocabulary_files: feature -> file with one string per line; becomes an asset.
      batch_sizes: ascending static sizes of the tensor-core lookup.
    """

    def __init__(
        self,
        spec: ModelSpec,
        tables: Mapping[str, Any],
        tower: Any,
        *,
        vocabulary_files: Mapping[str, Path],
        batch_sizes: Sequence[int],
    ) -> None:
        super().__init__()
        self.tables = {table.name: tf.Variable(tables[table.name], name=table.name) for table in spec.tables}
        self.tower = tower
        self.vocabularies = {name: _row_of_string(path) for name, path in vocabulary_files.items()}
        self._spec = spec
        self._batch_sizes = tuple(batch_sizes)
        # A dict keyed by TableConfig can not be saved with the module, so it stays in a closure.
        config = feature_config(spec)
        by_config = {feature.table: self.tables[feature.table.name] for feature in config.values()}

        def lookup_parts() -> tuple[dict[Any, Any], dict[str, Any]]:
            return by_config, config

        self._lookup_parts = lookup_parts

    def build_signatures(self) -> dict[str, Any]:
        """Returns the tf.function of every signature, to be passed to tf.saved_model.save."""
        return {
            LOOKUP: lookup_signatures.cpu_lookup(self._spec, *self._lookup_parts()),
            LOOKUP_TENSOR_CORE: lookup_signatures.tensor_core_lookup(self._spec, self.tables, self._batch_sizes),
            PREDICT: tf.function(self._predict, input_signature=[_predict_specs(self._spec)], autograph=False),
            PREDICT_EXAMPLES: tf.function(
                self._predict_examples,
                input_signature=[tf.TensorSpec([None], tf.string, EXAMPLES_INPUT)],
                autograph=False,
            ),
        }

    def _predict(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        ids = {f.name: lookup_signatures.feature_ids(f, inputs) for f in self._spec.features}
        return {RATING_OUTPUT: self.tower.clipped(self._vectors(ids))}

    def _vectors(self, ids: Mapping[str, Any]) -> Any:
        by_config, config = self._lookup_parts()
        return tf.tpu.experimental.embedding.serving_embedding_lookup(ids, None, by_config, config)

    def _predict_examples(self, examples: Any) -> dict[str, Any]:
        parsed = tf.io.parse_example(examples, {f.name: _example_field(self._spec, f) for f in self._spec.features})
        for feature in self._spec.features:
            if feature.name in self.vocabularies:
                parsed[feature.name] = _map_values(parsed[feature.name], self.vocabularies[feature.name])
        return {RATING_OUTPUT: self.tower.clipped(self._vectors(parsed))}


def _predict_specs(spec: ModelSpec) -> dict[str, Any]:
    return {
        name: tensor_spec
        for name, tensor_spec in lookup_signatures.input_specs(spec, tf.int64).items()
        if name not in {f.weights_input for f in spec.features}
    }


def _row_of_string(path: Path) -> Any:
    # Line i is looked up as i, a stranger as -1; _map_values adds the 1 that makes them rows 1 + i and 0.
    # NOTE: TensorFlow names the table after the file's path and shares tables of one name within a process, so two
    # versions loaded side by side stay apart only because their vocabularies came from folders of different names.
    whole_line, line_number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    lines = tf.lookup.TextFileInitializer(str(path), tf.string, whole_line, tf.int64, line_number)
    return tf.lookup.StaticHashTable(lines, default_value=-1)


def _map_values(strings: Any, rows: Any) -> Any:
    if isinstance(strings, tf.RaggedTensor):
        return strings.with_values(rows.lookup(strings.values) + 1)
    return rows.lookup(strings) + 1


def _example_field(spec: ModelSpec, feature: FeatureSpec) -> Any:
    # A field that an Example leaves out is an unknown id (row 0), an unknown string, or an empty row.
    dtype = tf.int64 if feature.vocabulary is None else tf.string
    if feature.is_ragged:
        return tf.io.RaggedFeature(dtype, row_splits_dtype=tf.int64)
    return tf.io.FixedLenFeature([], dtype, default_value="" if dtype == tf.string else 0)
