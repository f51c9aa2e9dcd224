"""Maps the keys that clients send to rows of a table in a graph, before the graph pads or looks up ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_export.spec.features import FeatureSpec, ModelSpec, VocabularySpec
from model_export.tensorflow_setup import tf

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
