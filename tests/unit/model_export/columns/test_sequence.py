"""Sequences are padded with zeros and cut on every device, and are else as TensorFlow's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.model_export.columns.column_cases import TABLE, WORDS, sparse, table_initializer, tpu_context

pytestmark = pytest.mark.tf

ROWS: list[list[int]] = [[], [5, 0], [1, 1, 2, 3], [4], [3, -1, 2], []]


def sequence_columns(folder: Path) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Returns the three kinds of sequence column, each with features for ROWS."""
    from model_export.tensorflow_setup import tf

    fc = tf.feature_column
    file = folder / "words.txt"
    file.write_text("\n".join(WORDS))
    words = [[WORDS[i] if i >= 0 else "zz" for i in row] for row in ROWS]
    return {
        "identity": (fc.sequence_categorical_column_with_identity("i", 6), {"i": sparse(ROWS, tf.int64)}),
        "file": (
            fc.sequence_categorical_column_with_vocabulary_file("f", str(file)),
            {"f": sparse(words, tf.string)},
        ),
        "list": (fc.sequence_categorical_column_with_vocabulary_list("l", WORDS), {"l": sparse(words, tf.string)}),
    }


def wanted(length: int) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Returns the expected vectors, [B, L, D], with zeros for ids below 0, and the expected lengths."""
    vectors = np.zeros((len(ROWS), length, 3), np.float32)
    for r, row in enumerate(ROWS):
        for t, i in enumerate(row[:length]):
            vectors[r, t] = TABLE[i] if i >= 0 else 0
    return vectors, [min(len(row), length) for row in ROWS]


def column_of(api: Any, is_shared: bool, categorical: Any, length: int, **arguments: Any) -> Any:
    """Makes a sequence column with the embedding function, or the function for shared embeddings, of a library."""
    arguments["initializer"] = table_initializer
    if is_shared:
        return api.shared_embedding_columns([categorical], 3, max_sequence_lengths=[length], **arguments)[0]
    return api.embedding_column(categorical, 3, max_sequence_length=length, **arguments)


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("kind", ["identity", "file", "list"])
def test_a_sequence_is_cut_and_padded(kind: str, is_shared: bool, tmp_path: Path) -> None:
    from model_export.columns import embedding_column as ours
    from model_export.tensorflow_setup import tf

    categorical, features = sequence_columns(tmp_path)[kind]
    layers = tf.keras.experimental
    for device, safe, length in (
        (None, True, 1),
        ("cpu", True, 3),
        ("tpu_embedding_core", False, 4),
        (None, False, 6),
    ):
        column = column_of(
            ours, is_shared, categorical, length, embedding_lookup_device=device, use_safe_embedding_lookup=safe
        )
        vectors, lengths = layers.SequenceFeatures([column])(features)
        np.testing.assert_array_equal(vectors, wanted(length)[0])
        assert lengths.numpy().tolist() == wanted(length)[1]
    # If L is the longest length, nothing is cut or padded, and TensorFlow's own column gives the same.
    theirs = column_of(tf.compat.v1.tpu.experimental, is_shared, categorical, 4)
    vectors, lengths = layers.SequenceFeatures([theirs])(features)
    np.testing.assert_array_equal(vectors, wanted(4)[0])
    assert lengths.numpy().tolist() == wanted(4)[1]


@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_ids_of_one_step_are_combined_as_tensorflow_does(combiner: str) -> None:
    from model_export.columns.embedding_column import embedding_column
    from model_export.tensorflow_setup import tf

    categorical = tf.feature_column.sequence_categorical_column_with_identity("i", 6)
    indices = [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 2, 1], [1, 2, 0], [1, 2, 1]]
    features = {"i": tf.SparseTensor(indices, tf.constant([1, 2, 3, 4, 5, 5], tf.int64), [3, 3, 2])}
    arguments: dict[str, Any] = {"combiner": combiner, "initializer": table_initializer}
    theirs = tf.compat.v1.tpu.experimental.embedding_column(categorical, 3, max_sequence_length=9, **arguments)
    whole, _ = tf.keras.experimental.SequenceFeatures([theirs])(features)
    for length in (2, 3, 5):
        ours = embedding_column(categorical, 3, max_sequence_length=length, **arguments)
        vectors, lengths = tf.keras.experimental.SequenceFeatures([ours])(features)
        padded = np.zeros((3, length, 3), np.float32)
        padded[:, : min(length, 3)] = whole[:, :length]
        np.testing.assert_array_equal(vectors, padded)
        assert lengths.numpy().tolist() == [min(3, length), min(3, length), 0]


def test_training_a_sequence_is_tensorflows_and_cut_steps_do_not_train(tmp_path: Path) -> None:
    from model_export.columns import embedding_column as ours
    from model_export.tensorflow_setup import tf

    v1 = tf.compat.v1

    def gradient(api: Any, length: int, is_shared: bool) -> Any:
        with tf.Graph().as_default():
            categorical, features = sequence_columns(tmp_path)["identity"]
            column = column_of(api, is_shared, categorical, length)
            vectors, _ = tf.keras.experimental.SequenceFeatures([column], name="sequence_features")(features)
            (table,) = v1.global_variables()
            (pulled,) = tf.gradients(tf.reduce_sum(tf.square(vectors)), [table])
            with v1.Session() as session:
                session.run([v1.global_variables_initializer()])
                return table.op.name, session.run(tf.convert_to_tensor(pulled))

    for is_shared in (False, True):
        name, whole = gradient(ours, 4, is_shared)
        their_name, theirs = gradient(tf.compat.v1.tpu.experimental, 4, is_shared)
        assert (
            name
            == their_name
            == ("i_shared_embedding" if is_shared else "sequence_features/i_embedding/embedding_weights")
        )
        np.testing.assert_array_equal(whole, theirs)
        # With at most 1 id a sequence, the lookup reads rows 5, 1, 4 and 3, once each.
        steps = np.zeros_like(TABLE)
        steps[[5, 1, 4, 3]] = 2 * TABLE[[5, 1, 4, 3]]
        np.testing.assert_allclose(gradient(ours, 1, is_shared)[1], steps, rtol=1e-6)


def test_a_sequence_works_in_a_function_and_on_the_host_of_a_tpu(tmp_path: Path) -> None:
    from model_export.columns import embedding_column as ours
    from model_export.tensorflow_setup import tf

    categorical, features = sequence_columns(tmp_path)["identity"]
    for is_shared in (False, True):
        layer = tf.keras.experimental.SequenceFeatures([column_of(ours, is_shared, categorical, 3)])
        function = tf.function(lambda ids, layer=layer: layer({"i": ids}))
        results = [tuple(part.numpy() for part in function(features["i"]))]
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            serving = tf.keras.experimental.SequenceFeatures([column_of(ours, is_shared, categorical, 3)])
            with tpu_context(shards=None):
                on_host = serving({"i": sparse(ROWS, tf.int64)})
            session.run(tf.compat.v1.global_variables_initializer())
            results.append(session.run(on_host))
        for vectors, lengths in results:
            np.testing.assert_array_equal(vectors, wanted(3)[0])
            assert lengths.tolist() == wanted(3)[1]


def test_each_layer_refuses_the_others_columns_as_tensorflow_does(tmp_path: Path) -> None:
    from model_export.columns import embedding_column as ours
    from model_export.tensorflow_setup import tf

    categorical, features = sequence_columns(tmp_path)["identity"]
    plain = tf.feature_column.categorical_column_with_identity("i", 6)
    for is_shared in (False, True):
        with pytest.raises(ValueError, match="must not be of type SequenceCategoricalColumn"):
            tf.keras.layers.DenseFeatures([column_of(ours, is_shared, categorical, 3)])(features)
        with pytest.raises(ValueError, match="must be of type SequenceCategoricalColumn"):
            tf.keras.experimental.SequenceFeatures([column_of(ours, is_shared, plain, 0)])(features)
