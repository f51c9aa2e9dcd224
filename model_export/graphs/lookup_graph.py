"""Builds the TensorFlow graph of a lookup signature from its manifest entry, with the vocabularies of its keys.

The entry is the one description of a lookup (ADR 0007): the server's kernels and the numpy oracle read the same entry.
Steps for each row of a request: keys become row numbers, the ids are cut at K or L, the policies for ids outside the
table and for weights of 0 or less are applied, and the vectors of the rest are combined.

Source (TensorFlow 2.21): tpu.experimental.embedding.serving_embedding_lookup combines on device cpu.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_export.graphs.combining import Compile, by_xla, padded_lookup, ragged_lookup
from model_export.graphs.source import id_dtype
from model_export.spec.features import FeatureSpec, ModelSpec, VocabularySpec
from model_export.tensorflow_setup import tf
from service.artifact.manifest import LookupFeature, SignatureEntry

# The id by which a lookup marks a key that its vocabulary drops; any other negative number would do, too.
DROPPED = -1


def vocabulary_tables(spec: ModelSpec, files: Mapping[str, Path]) -> dict[str, Any]:
    """Makes TensorFlow's lookup table for each feature with a vocabulary file; the file becomes an asset of the model.

    Works eagerly (attach the tables to the module that is saved) and in a v1 graph (which gets their initializers).
    NOTE: TensorFlow names a table after its file's path, and shares tables of the same name within a process. Two
    loaded versions stay separate only because their files lie in folders of different names.
    """
    return {feature.name: _file_table(files[feature.name]) for feature in spec.features if feature.name in files}


def rows_of_keys(feature: FeatureSpec, keys: Any, table: Any) -> Any:
    """Maps keys of any shape to int64 row numbers; a key that the vocabulary drops becomes DROPPED.

    Source: fingerprint and buckets are those of IdTableWithHashBuckets in tensorflow/python/ops/lookup_ops.py (2.21),
    which TensorFlow's categorical columns use.

    Args:
      keys: string or integer tensor.
      table: the feature's lookup table from vocabulary_tables().
    """
    vocabulary = feature.vocabulary
    assert vocabulary is not None  # callers check this
    strings = keys if keys.dtype == tf.string else tf.strings.as_string(keys)
    lines = table.lookup(strings)
    is_known = lines >= 0
    other, checks = _other(feature, vocabulary, strings, is_known)
    with tf.control_dependencies(checks):
        return tf.where(is_known, lines + vocabulary.first_id, other)


def _other(feature: FeatureSpec, vocabulary: VocabularySpec, strings: Any, is_known: Any) -> tuple[Any, list[Any]]:
    if vocabulary.num_oov_buckets:
        first_bucket = vocabulary.first_id + len(vocabulary.keys)
        return tf.strings.to_hash_bucket_fast(strings, vocabulary.num_oov_buckets) + first_bucket, []
    if vocabulary.oov_id is not None:
        return tf.constant(vocabulary.oov_id, tf.int64), []
    dropped = tf.constant(DROPPED, tf.int64)
    if vocabulary.on_oov == "drop":
        return dropped, []
    is_all_known = tf.reduce_all(is_known)
    message = f"{feature.ids_input}: a key is not in the vocabulary"
    return dropped, [tf.debugging.Assert(is_all_known, [message], name=f"{feature.name}_keys_known")]


def _file_table(path: Path) -> Any:
    # The lookup table's keys are strings even if clients send integers, because TensorFlow reads whole lines only as
    # strings.
    whole_line, line_number = tf.lookup.TextFileIndex.WHOLE_LINE, tf.lookup.TextFileIndex.LINE_NUMBER
    lines = tf.lookup.TextFileInitializer(str(path), tf.string, whole_line, tf.int64, line_number)
    return tf.lookup.StaticHashTable(lines, default_value=-1)


@dataclass(frozen=True, slots=True)
class LookupGraph:
    """A lookup signature whose graph can be built in any tf.Graph. Concurrency: one caller at a time."""

    entry: SignatureEntry
    spec: ModelSpec
    tables: Mapping[str, Any]
    vocabularies: Mapping[str, Any]
    compiled: Compile = by_xla

    def input_specs(self) -> dict[str, Any]:
        specs = {}
        for name, lookup in self.entry.features.items():
            dtype = tf.as_dtype(id_dtype(self.spec.feature(name), self.entry.device))
            specs[lookup.ids] = tf.TensorSpec([None], dtype, lookup.ids)
            if lookup.row_splits is not None:
                specs[lookup.row_splits] = tf.TensorSpec([None], tf.int64, lookup.row_splits)
            if lookup.weights is not None:
                specs[lookup.weights] = tf.TensorSpec([None], tf.float32, lookup.weights)
        return specs

    def weight_inputs(self) -> list[str]:
        return [lookup.weights for lookup in self.entry.features.values() if lookup.weights is not None]

    def outputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Builds the lookup on input tensors; returns float32 by output: [B, D], or [B, L, D] of a sequence.

        Works in a tf.function and in a v1 graph.
        """
        rows = {name: self._rows(name, lookup, inputs) for name, lookup in self.entry.features.items()}
        weights = {
            name: with_default_weights(lookup, inputs)
            for name, lookup in self.entry.features.items()
            if lookup.weights is not None
        }
        tables = {name: self.tables[self.spec.feature(name).table] for name in self.entry.features}
        shapes = {name: self.spec.table_of(name) for name in self.entry.features}
        if self.entry.batch_sizes:
            vectors = padded_lookup(self.entry, shapes, tables, rows, weights, compiled=self.compiled)
        else:
            vectors = ragged_lookup(self.entry, shapes, tables, rows, weights)
        return {lookup.output or name: vectors[name] for name, lookup in self.entry.features.items()}

    def function(self) -> Any:
        # tf.saved_model.save writes default arguments that are tensors as SignatureDef.defaults, so that TensorFlow
        # Serving and our server accept requests without them. A default of None is not written.
        specs = self.input_specs()
        optional = set(self.weight_inputs())
        defaults = {name: tf.zeros([0]) if name in optional else None for name in specs}

        def lookup(inputs: Mapping[str, Any] = defaults) -> Any:
            return self.outputs(inputs)

        return tf.function(lookup, input_signature=[specs], autograph=False)

    def signature_def(self, name: str) -> Any:
        v1 = tf.compat.v1
        inputs = {
            key: v1.placeholder(spec.dtype, spec.shape, f"{name}_{key}") for key, spec in self.input_specs().items()
        }
        outputs = {key: tf.identity(vectors, f"{name}_{key}_vectors") for key, vectors in self.outputs(inputs).items()}
        # TensorFlow's predict_signature_def() is not used, because it logs at each call that it is deprecated.
        method = v1.saved_model.signature_constants.PREDICT_METHOD_NAME
        definition = v1.saved_model.build_signature_def(method_name=method)
        for infos, tensors in ((definition.inputs, inputs), (definition.outputs, outputs)):
            for key, tensor in tensors.items():
                infos[key].name = tensor.name
                infos[key].dtype = tensor.dtype.as_datatype_enum
                infos[key].tensor_shape.CopyFrom(tensor.shape.as_proto())
        for key in self.weight_inputs():
            definition.defaults[key].CopyFrom(tf.make_tensor_proto([], tf.float32, [0]))
        return definition

    def _rows(self, name: str, lookup: LookupFeature, inputs: Mapping[str, Any]) -> Any:
        ids = inputs[lookup.ids]
        if name in self.vocabularies:
            ids = rows_of_keys(self.spec.feature(name), ids, self.vocabularies[name])
        if lookup.row_splits is None:
            return ids
        return tf.RaggedTensor.from_row_splits(ids, inputs[lookup.row_splits], validate=True)


def build_lookup(
    entry: SignatureEntry,
    spec: ModelSpec,
    tables: Mapping[str, Any],
    vocabularies: Mapping[str, Any] | None = None,
    *,
    compiled: Compile = by_xla,
) -> LookupGraph:
    """Makes the LookupGraph of a manifest entry.

    Args:
      tables: table name -> [V, D] variable or tensor, a list of its parts by rows in order (partitioned variables), or
        a reduced_graph.GraphTable.
      vocabularies: feature -> table of vocabulary_graph.vocabulary_tables, for those that take keys; features that
        send rows (FeatureSpec.sends_rows) are left out by this function.
      compiled: wraps the dense part of a padded lookup, so that XLA compiles it or, in a {serve,tpu} MetaGraph, it runs
        on the TPU: `lambda combine: partial(tpu_call, combine)`.
    """
    keyed = {
        name: table for name, table in (vocabularies or {}).items() if name in entry.features and _is_keyed(spec, name)
    }
    missing = sorted(name for name in entry.features if _is_keyed(spec, name) and name not in keyed)
    if missing:
        raise ValueError(f"vocabularies: features {missing} take keys and have no vocabulary table")
    return LookupGraph(entry, spec, tables, keyed, compiled)


def with_default_weights(lookup: LookupFeature, inputs: Mapping[str, Any]) -> Any:
    """Returns [N] float32 weights: the request's, or ones if it has none; the graph fails if it has another number."""
    assert lookup.weights is not None  # callers check this
    values, weights = inputs[lookup.ids], inputs[lookup.weights]
    ones = tf.ones(tf.shape(values), tf.float32)
    weights = tf.cond(tf.equal(tf.size(weights), 0), lambda: ones, lambda: weights)
    same = tf.debugging.assert_equal(tf.size(weights), tf.size(values), f"{lookup.weights}: one weight per id")
    with tf.control_dependencies([same]):
        return tf.identity(weights)


def _is_keyed(spec: ModelSpec, feature: str) -> bool:
    declared = spec.feature(feature)
    return declared.vocabulary is not None and not declared.sends_rows
