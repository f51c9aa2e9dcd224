"""What columns are fed, from explicit tensors and from tf.Example: the same as from sparse tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.model_export.columns.column_cases import sparse, table_initializer, weights_of

pytestmark = pytest.mark.tf

IDS: list[list[int]] = [[], [5, 0], [1, 1, 2], []]
FACTORS = weights_of(IDS)


def columns() -> tuple[Any, Any, Any]:
    """A weighted column, one of words, and a sequence."""
    from model_export.columns.embedding_column import embedding_column
    from model_export.tensorflow_setup import tf

    fc = tf.feature_column
    weighted = fc.weighted_categorical_column(fc.categorical_column_with_identity("a/b", 6), "w")
    words = fc.categorical_column_with_vocabulary_list("words", list("abcdef"))
    steps = fc.sequence_categorical_column_with_identity("steps", 6)
    return (
        embedding_column(weighted, 3, initializer=table_initializer),
        embedding_column(words, 3, initializer=table_initializer),
        embedding_column(steps, 3, initializer=table_initializer, max_sequence_length=2),
    )


def looked_up(features: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    """Dense vectors, sequences and lengths of the three columns."""
    from model_export.tensorflow_setup import tf

    weighted, words, steps = columns()
    sequences = tf.keras.experimental.SequenceFeatures([steps])(features)
    return [tf.keras.layers.DenseFeatures([weighted, words])(features).numpy(), *(part.numpy() for part in sequences)]


def direct(factors: list[list[float]]) -> dict[str, Any]:
    """Features as sparse tensors."""
    from model_export.tensorflow_setup import tf

    return {
        "a/b": sparse(IDS, tf.int64),
        "w": sparse(factors, tf.float32),
        "words": sparse([["abcdef"[i] for i in row] for row in IDS], tf.string),
        "steps": sparse(IDS, tf.int64),
    }


@pytest.mark.parametrize("has_weights", [True, False])
def test_explicit_tensors_become_the_columns_features(has_weights: bool) -> None:
    from model_export.columns.inputs import column_features
    from model_export.tensorflow_setup import tf

    ids = [i for row in IDS for i in row]
    splits = tf.constant(np.cumsum([0, *map(len, IDS)]), tf.int64)
    inputs = {
        "a_b__values": tf.constant(ids, tf.int64),
        "words__values": tf.constant(["abcdef"[i] for i in ids]),
        "steps__values": tf.constant(ids, tf.int64),
        **{f"{name}__row_splits": splits for name in ("a_b", "words", "steps")},
    }
    factors = FACTORS if has_weights else [[1.0] * len(row) for row in IDS]
    if has_weights:
        inputs["a_b__weights"] = tf.constant([w for row in FACTORS for w in row])
    for got, wanted in zip(looked_up(column_features(columns(), inputs)), looked_up(direct(factors)), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_examples_are_parsed_into_the_columns_features() -> None:
    from model_export.columns.inputs import serving_parse_spec
    from model_export.tensorflow_setup import tf

    def example(ids: list[int], factors: list[float]) -> bytes:
        numbers = tf.train.Feature(int64_list=tf.train.Int64List(value=ids))
        words = tf.train.Feature(bytes_list=tf.train.BytesList(value=["abcdef"[i].encode() for i in ids]))
        weights = tf.train.Feature(float_list=tf.train.FloatList(value=factors))
        fields = {"a/b": numbers, "w": weights, "words": words, "steps": numbers}
        serialized: bytes = tf.train.Example(features=tf.train.Features(feature=fields)).SerializeToString()
        return serialized

    examples = [example(ids, factors) for ids, factors in zip(IDS, FACTORS, strict=True)]
    parsed = tf.io.parse_example(tf.constant(examples), serving_parse_spec(columns()))
    for got, wanted in zip(looked_up(parsed), looked_up(direct(FACTORS)), strict=True):
        np.testing.assert_array_equal(got, wanted)
